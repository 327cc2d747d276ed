"""Steps whose loss or gradient norm is not finite; oracles are the steps that were broken on purpose."""

import math

import pytest

from trimtab.gates.nonfinite_steps import nonfinite_steps

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"grad_norm": NAN}, "step 77 not finite: the gradient norm of step 77 is nan"),
        ({"grad_norm": INF}, "step 77 not finite: the gradient norm of step 77 is inf"),
        ({"grad_norm": 1e39}, "the gradient norm of step 77 is 1e+39"),
        ({"rows_loss": NAN, "loss": NAN}, "step 77 not finite: the loss of step 77 is nan"),
        ({"rows_loss": -INF}, "the loss of step 77 is -inf"),
        ({"loss": 0.0, "rows_loss": 0.0, "grad_norm": NAN}, "the gradient norm of step 77 is nan"),
        ({"grad_norm": NAN, "reason": "nonfinite_norm"}, "step 77 not finite (1 of them dropped, with the weights as"),
    ],
    ids=["nan norm", "inf norm", "beyond float32", "nan loss", "inf loss", "zero loss", "dropped by the guard"],
)
def test_one_step_that_is_not_finite_fails_the_chunk_and_is_named(run, given, told):
    run.attempt(1, 100, steps={77: given})
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["steps"], gate.figures["num_nonfinite"]) == ("failed", [77], 1)
    assert told in gate.text
    assert "trimtab rewind --step 77" in gate.text


def test_many_are_counted_and_the_first_are_named(run):
    run.attempt(1, 60, steps={step: {"grad_norm": NAN} for step in range(40, 61)})
    gate = run.judge(nonfinite_steps)
    assert gate.text.startswith("steps 40, 41, 42, 43, 44 and 16 more not finite: the gradient norm of step 40 is nan")


def test_what_an_earlier_chunk_had_does_not_fail_the_next(run):
    run.attempt(1, 50, steps={5: {"grad_norm": NAN}}).attempt(51, 80)
    assert run.judge(nonfinite_steps).status == "passed"
    assert run.judge(nonfinite_steps, since=4).status == "failed"
    assert run.judge(nonfinite_steps, since=5).status == "passed"


def test_what_was_trained_again_without_it_counts(run):
    run.attempt(1, 80, steps={75: {"grad_norm": NAN}}, end="kill").attempt(71, 100)
    assert run.judge(nonfinite_steps).status == "passed"


def test_overflows_of_a_loss_scaler_are_counted_apart(run):
    run.attempt(1, 60, steps={3: {"grad_norm": INF, "reason": "scaler_overflow"}})
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["num_scaler_overflows"]) == ("passed", 1)
    assert gate.text == "none of 60 steps; 1 overflow of the loss scaler, not counted"


def test_an_overflow_does_not_excuse_a_loss_that_is_nan(run):
    run.attempt(1, 60, steps={3: {"grad_norm": INF, "reason": "scaler_overflow", "rows_loss": NAN, "loss": NAN}})
    assert run.judge(nonfinite_steps).status == "failed"


def test_micro_batches_that_the_guard_kept_out_fail_nothing_and_are_told(run):
    # given: one micro-batch of the step was NaN and left out, and the step was taken without it
    run.attempt(1, 60, steps={9: {"rows_loss": NAN, "keep": False, "loss": 2.5, "num_skipped_micros": 1}})
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.text) == ("passed", "none of 60 steps; the guard kept 1 micro-batch out")


def test_a_step_of_which_the_guard_left_out_all_is_none(run):
    given = {"rows_loss": NAN, "keep": False, "loss": NAN, "num_tokens": 0, "reason": "all_skipped", "grad_norm": NAN}
    run.attempt(1, 60, steps={9: {**given, "num_skipped_micros": 1}})
    assert run.judge(nonfinite_steps).status == "passed"


def test_without_gradient_norms_it_is_unknown_and_says_how_to_measure_them(run):
    run.attempt(1, 30, steps={step: {"grad_norm": None} for step in range(1, 31)})
    gate = run.judge(nonfinite_steps)
    assert gate.status == "unknown"
    assert "where it is given a max_grad_norm" in gate.text


def test_steps_that_are_missing_in_the_log_have_not_passed(run):
    run.attempt(1, 30).attempt(41, 60)
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["num_steps_missing"]) == ("unknown", 10)
    assert "10 steps of the chunk cannot be found in the log" in gate.text
