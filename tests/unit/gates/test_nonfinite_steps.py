"""Steps whose loss or gradient norm is not finite; oracles are the steps that were broken on purpose."""

import math
import shutil

import pytest

from trimtab.gates.evidence import read_evidence
from trimtab.gates.finished import finished
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.log.folder import create_run, join_run
from trimtab.recorder import Recorder
from trimtab.values import Event, RunHeader, StepRow

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
    assert gate.text.endswith(f"; trimtab rewind {run.shown} --step 77 shows its rows")


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


OVERFLOW = {"grad_norm": INF, "reason": "scaler_overflow"}


@pytest.mark.parametrize(
    ("first", "status"), [(59, "passed"), (58, "failed"), (6, "failed")], ids=["two", "three", "55"]
)
def test_a_scaler_that_has_found_no_scale_when_the_chunk_ends_fails_it(run, first, status):
    run.attempt(1, 60, steps=dict.fromkeys(range(first, 61), OVERFLOW))
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["num_scaler_overflows_at_end"]) == (status, 61 - first)
    if status == "failed":
        assert gate.text.startswith("the loss scaler has found no scale: gradients overflowed in ")
        assert f"since step {first} none was taken" in gate.text


def test_the_search_of_a_scalers_beginning_fails_nothing(run):
    run.attempt(1, 60, steps=dict.fromkeys(range(1, 17), OVERFLOW))
    assert run.judge(nonfinite_steps).status == "passed"


@pytest.mark.parametrize("loss", [NAN, INF, -INF, 1e39], ids=str)
def test_a_loss_that_the_run_reported_counts_though_its_rows_are_finite(run, loss):
    # given: an auxiliary term that is no number, which no row holds
    run.attempt(1, 60, steps={30: {"loss": loss, "rows_loss": 2.0}})
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["steps"]) == ("failed", [30])
    assert f"the loss of step 30 is {loss:.4g}" in gate.text


def test_of_a_step_without_tokens_no_loss_is_missed(run):
    run.attempt(1, 30, steps={9: {"loss": NAN, "rows_loss": 2.0, "num_tokens": 0, "reason": "no_tokens"}})
    assert run.judge(nonfinite_steps).status == "passed"


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


def test_a_log_that_begins_in_the_middle_of_its_run_has_lost_what_came_before(run):
    run.attempt(31, 80)
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["num_steps_missing"]) == ("unknown", 30)
    assert "which begins with step 31 (--since 30 judges from there)" in gate.text
    assert run.judge(nonfinite_steps, since=30).status == "passed"


def test_one_that_goes_on_from_a_checkpoint_of_another_log_has_not(run):
    # given: what a run writes that has compared its first steps with the last ones of a checkpoint
    run.attempt(31, 80, events={31: ("resume_check", {"num_steps": 5, "compared": ["loss"], "findings": []})})
    gate = run.judge(nonfinite_steps)
    assert (gate.status, gate.text) == ("passed", "none of 50 steps")


def two_ranks(tmp_path, *, steps_of_second):
    header = RunHeader(run_id="r", backend="torch", world_size=2, created=1.0, out=str(tmp_path))
    folders = [create_run(tmp_path, header)]
    folders.append(join_run(tmp_path, header, attempt=1, folder=str(folders[0].path)))
    for rank, steps in ((0, range(1, 21)), (1, steps_of_second)):
        recorder = Recorder(folders[rank], rank=rank)
        for step in steps:
            recorder.put(StepRow(step, 2.0, 1.0, 1e-3, num_tokens=10))
        recorder.put(Event("end", 20, 3.0, {"reason": "closed"}))
        recorder.close()
    return folders[0].path


@pytest.mark.parametrize(
    ("steps", "status"),
    [(range(1, 21), "passed"), ([*range(1, 9), *range(10, 21)], "unknown"), ([], "unknown")],
    ids=["whole", "one lost", "all lost"],
)
def test_a_step_that_a_rank_left_no_record_of_has_not_passed(tmp_path, steps, status):
    evidence = read_evidence(two_ranks(tmp_path, steps_of_second=steps))
    gate = nonfinite_steps(evidence)
    assert (gate.status, gate.figures["num_steps_of_some_ranks"]) == (status, 20 - len(list(steps)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_files_are_gone_has_not_passed(tmp_path, rank):
    folder = two_ranks(tmp_path, steps_of_second=range(1, 21))
    for part in folder.glob(f"**/rank-0000{rank}.*"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    evidence = read_evidence(folder)
    assert nonfinite_steps(evidence).status == "unknown"
    assert finished(evidence).status == "unknown"


def test_step_records_that_are_lost_are_missed_though_the_rows_are_there(sealed_run):
    sealed_run.attempt(1, 30)
    (records,) = sealed_run.folder.glob("**/steps.parquet")
    records.write_bytes(records.read_bytes()[:-100])
    gate = sealed_run.judge(nonfinite_steps)
    assert (gate.status, gate.figures["num_steps_of_some_ranks"]) == ("unknown", 30)
    assert "of 30 steps not every rank's record is in the log" in gate.text
