"""What else stands at the end of a chunk."""

import math

import pytest

from trimtab.gates.judging import LOG_GATES
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.gates.watch import watch


def test_a_run_of_which_nothing_is_found_passes(run):
    run.attempt(1, 60)
    gate = run.judge(watch)
    assert (gate.status, gate.text) == ("passed", "nothing stands that marks a checkpoint")


def test_a_model_without_routers_is_watched_too(run):
    run.attempt(1, 60, reports=None)
    assert run.judge(watch).status == "passed"


def test_weights_that_a_step_may_have_spoilt_stand_against_the_chunk(run):
    # given: the last step was taken with a gradient that is not finite
    run.attempt(1, 60, steps={60: {"grad_norm": math.nan}})
    gate = run.judge(watch)
    assert gate.status == "failed"
    assert gate.text.startswith("nonfinite: ")
    assert "do not build on it" in gate.text


def test_a_finding_that_fails_a_gate_of_its_own_is_left_to_that_gate(run, make_layer, make_report):
    # given: experts that get no token to the end, evaluations that become worse and worse
    crowded = make_layer(counts=(4_000, 4_000, 0, 0, 0, 0, 0, 0), load_balance=4.0, token_entropy=0.0)
    worse = {step: 2.0 + step / 50 for step in range(20, 101, 10)}
    run.attempt(1, 100, reports=lambda step: make_report(step, crowded), evaluations=worse)
    # then
    judged = {name: run.judge(gate) for name, gate in LOG_GATES.items()}
    failed = {name for name, one in judged.items() if one.status == "failed"}
    assert failed == {"router_load", "dead_experts", "populations", "eval_streak"}
    assert judged["watch"].figures["findings"] == []


def test_what_is_over_does_not(run):
    run.attempt(1, 60, steps={5: {"grad_norm": math.nan}})
    assert run.judge(watch).status == "passed"
    assert run.judge(nonfinite_steps).status == "failed"


def test_a_warning_that_marks_nothing_is_told_and_passes(run):
    # given: a pace that fell to a fifth
    events = {40: ("vitals", {"step": 40, "attention_logit": 20.0})}
    run.attempt(1, 60, events=events)
    assert run.judge(watch).status == "passed"


def scales(step):
    """A loss scale that had settled, and halves at every step from step 50 on; gradients overflow with it."""
    scale = 2.0**14 / 2 ** max(0, step - 49)
    overflows = {"reason": "scaler_overflow", "grad_norm": math.inf} if step >= 50 else {}
    return {"loss_scale": scale, **overflows}


def test_a_training_that_stands_still_fails_though_its_weights_are_as_they_were(run):
    run.attempt(1, 60, steps={step: scales(step) for step in range(1, 61)})
    gate = run.judge(watch)
    assert gate.status == "failed"
    assert gate.text.startswith("loss_scale_collapse: the loss scale fell from 16384 to ")
    assert "(since step 52, last seen at step 60)" in gate.text


def test_evaluations_that_are_the_same_to_the_last_bit_fail_it(run):
    run.attempt(1, 60, evaluations={20: 2.5, 40: 2.5, 60: 2.5})
    gate = run.judge(watch)
    assert (gate.status, gate.text.startswith("eval_unchanged: ")) == ("failed", True)


def test_a_finding_is_dated_from_where_it_began(run):
    run.attempt(1, 60, steps={step: {"grad_norm": math.nan} for step in range(30, 61)})
    assert "(since step 30, last seen at step 60)" in run.judge(watch).text


def test_without_a_watch_it_is_unknown_unless_the_log_alone_speaks_against_it(run):
    run.attempt(1, 60, watch=None)
    assert run.judge(watch).status == "unknown"
    run.attempt(61, 80, watch=None, steps={80: {"grad_norm": math.nan}})
    assert run.judge(watch).status == "failed"


def test_an_attempt_of_the_chunk_without_a_watch_makes_it_unknown(run):
    run.attempt(1, 40, end="kill").attempt(41, 60, watch=None)
    gate = run.judge(watch)
    assert (gate.status, "attempt 2" in gate.text) == ("unknown", True)


def test_a_watch_that_was_off_has_passed_nothing(run, make_report):
    run.attempt(1, 60, reports=lambda step: None if step >= 30 else make_report(step))
    gate = run.judge(watch)
    assert (gate.status, "it was off there" in gate.text) == ("unknown", True)


@pytest.mark.parametrize("every", [0, -3, "x", None, 10**30], ids=str)
def test_settings_of_a_watch_that_cannot_be_are_taken_for_the_usual(run, every):
    run.attempt(1, 60, watch=None, events={1: ("watch", {"report_every": every, "watches_routers": "yes"})})
    assert run.judge(watch).status == "unknown", "nothing of a look at step 50 is in the log"
