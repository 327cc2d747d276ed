"""Which steps a chunk is, and whether it has been trained to its end."""

import pytest

from trimtab.errors import LogError, UsageError
from trimtab.gates.evidence import read_evidence
from trimtab.gates.finished import finished
from trimtab.gates.judging import LOG_GATES
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.log.folder import continue_run, create_run, join_run
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.values import Event, MicroBatch, RunHeader, StepRow


def chunk_of(run, **more):
    chunk = read_evidence(open_log(run.folder), **more).chunk
    return chunk.first_step, chunk.last_step, chunk.num_steps, chunk.attempts


def test_a_run_that_was_trained_in_one_go_is_one_chunk_and_passes_every_gate_of_the_log(run):
    run.attempt(1, 100, evaluations={50: 2.9, 100: 2.8})
    assert chunk_of(run) == (1, 100, 100, (1,))
    assert {run.judge(gate).status for gate in LOG_GATES.values()} == {"passed"}
    assert run.judge(finished).text == "closed after steps 1 to 100"


def test_what_was_trained_after_a_clean_stop_is_a_chunk_of_its_own(run):
    run.attempt(1, 50).attempt(51, 120)
    assert chunk_of(run) == (51, 120, 70, (2,))


def test_a_log_that_was_sealed_gives_the_same_chunk(sealed_run):
    sealed_run.attempt(1, 50, evaluations={50: 2.9}).attempt(51, 87, end="kill").attempt(71, 120, evaluations={120: 2})
    assert chunk_of(sealed_run) == (51, 120, 70, (2, 3))
    assert {sealed_run.judge(gate).status for gate in LOG_GATES.values()} == {"passed"}


def test_an_interrupted_chunk_that_was_resumed_is_one_chunk(run):
    # given: a clean stop at 50, a kill at 87, a resume from step 70
    run.attempt(1, 50).attempt(51, 87, end="kill").attempt(71, 120)
    # then
    assert chunk_of(run) == (51, 120, 70, (2, 3))
    gate = run.judge(finished)
    assert (gate.status, gate.text) == ("passed", "closed after steps 51 to 120, interrupted and resumed: 2 attempts")


def test_an_end_by_an_exception_is_no_clean_stop(run):
    run.attempt(1, 50).attempt(51, 87, end="ValueError").attempt(71, 120)
    assert chunk_of(run) == (51, 120, 70, (2, 3))


def test_a_run_that_was_taken_back_is_judged_from_where_it_went_on(run):
    run.attempt(1, 100).attempt(51, 70)
    assert chunk_of(run) == (51, 70, 20, (2,)), "what the first attempt found further on counts for nothing"


def test_a_clean_stop_whose_steps_were_all_trained_again_is_one_all_the_same(run):
    run.attempt(1, 100, end="kill").attempt(101, 110).attempt(91, 120)
    assert chunk_of(run) == (91, 120, 30, (3,))


def test_steps_after_a_given_one_are_judged_on_request(run):
    run.attempt(1, 50).attempt(51, 120)
    assert chunk_of(run, since=30) == (31, 120, 90, (1, 2))
    assert chunk_of(run, since=0) == (1, 120, 120, (1, 2))
    assert chunk_of(run, since=119) == (120, 120, 1, (2,))


def test_a_step_behind_the_end_is_no_beginning(run):
    run.attempt(1, 50)
    with pytest.raises(LogError, match=r"no step after 50 is in the log; it holds steps 1 to 50\."):
        chunk_of(run, since=50)
    with pytest.raises(UsageError, match="since=-1 makes no sense"):
        chunk_of(run, since=-1)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("kill", "the run has not ended: it is still going on, or was killed after step 120; wait for it, or train"),
        ("KeyboardInterrupt", "the last attempt ended at step 120 by KeyboardInterrupt, and was not closed"),
        ("a\x1b[31m\nb", r"by a\x1b[31m\nb, and was not closed"),
    ],
    ids=["killed", "exception", "hostile"],
)
def test_a_chunk_that_was_not_closed_has_not_finished(run, end, told):
    run.attempt(1, 50).attempt(51, 120, end=end)
    gate = run.judge(finished)
    assert gate.status == "failed"
    assert told in gate.text
    assert "plain resume" in gate.text


def test_an_attempt_that_has_begun_after_it_and_taken_no_step_is_still_going_on(run):
    run.attempt(1, 50)
    folder = continue_run(run.out, "r", RunHeader(run_id="r", backend="torch"))
    recorder = Recorder(folder)
    recorder.put(Event("resume", 51, 1.0, {"attempt": 2}))
    recorder.close()
    gate = run.judge(finished)
    assert gate.status == "failed"
    assert "attempt 2 has begun and recorded no step yet" in gate.text


def test_an_attempt_without_a_step_does_not_close_the_one_that_was_killed(run):
    run.attempt(1, 50, end="kill")
    recorder = Recorder(continue_run(run.out, "r", RunHeader(run_id="r", backend="torch")))
    recorder.put(Event("resume", 41, 1e10, {"attempt": 2}))
    recorder.put(Event("end", 41, 2e10, {"reason": "closed"}))
    recorder.close()
    gate = run.judge(finished)
    assert (gate.status, gate.figures["last_attempt"]) == ("failed", 2)
    assert "attempt 1 was killed after step 50, and what came after it trained no step" in gate.text


def empty_attempt(run, *, records=(), reason="closed"):
    """An attempt that goes on behind step 50 and takes no step."""
    recorder = Recorder(continue_run(run.out, "r", RunHeader(run_id="r", backend="torch")))
    recorder.put(Event("resume", 51, 1e10, {"attempt": 2}))
    for record in records:
        recorder.put(record)
    recorder.put(Event("end", 51, 2e10, {"reason": reason}))
    recorder.close()


@pytest.mark.parametrize("records", [(), (MicroBatch(51, 0, [1], [3.0], [5]),)], ids=["nothing", "an open step"])
def test_nor_one_that_died_by_an_exception(run, records):
    run.attempt(1, 50, end="KeyboardInterrupt")
    empty_attempt(run, records=records)
    gate = run.judge(finished)
    assert (gate.status, gate.figures["attempts"]) == ("failed", [1])
    assert gate.text.startswith("attempt 1 ended at step 50 by KeyboardInterrupt, and was not closed, and what came")


def test_an_attempt_without_a_step_takes_nothing_from_one_that_was_closed_and_is_told(run):
    run.attempt(1, 50)
    empty_attempt(run, reason="ValueError")
    gate = run.judge(finished)
    assert gate.status == "passed"
    assert gate.text == "closed after steps 1 to 50; attempt 2 after it trained no step (its end: ValueError)"


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"reason": "dropped"}, "60 dropped"),
        ({"reason": "all_skipped", "keep": False, "grad_norm": None, "num_tokens": 0}, "60 all_skipped"),
        ({"reason": "scaler_overflow", "grad_norm": float("inf")}, "60 scaler_overflow"),
    ],
    ids=["dropped", "guarded", "overflows"],
)
def test_a_chunk_of_which_the_optimizer_took_no_step_has_not_been_trained(run, given, left_out):
    run.attempt(1, 60, steps=dict.fromkeys(range(1, 61), given))
    gate = run.judge(finished)
    assert (gate.status, gate.figures["num_steps_taken"]) == ("failed", 0)
    assert gate.text.startswith(f"the optimizer took none of steps 1 to 60 ({left_out}): ")


@pytest.mark.parametrize(("num_taken", "is_told"), [(29, True), (30, False)], ids=["less than half", "half"])
def test_that_most_steps_were_not_taken_is_told(run, num_taken, is_told):
    run.attempt(1, 60, steps={step: {"reason": "dropped"} for step in range(num_taken + 1, 61)})
    gate = run.judge(finished)
    assert gate.status == "passed"
    assert (f"the optimizer took {num_taken} of 60 steps (31 dropped)" in gate.text) is is_told


@pytest.mark.parametrize(
    ("other_end", "status"), [("closed", "passed"), (None, "failed"), ("ValueError", "failed")], ids=str
)
def test_every_rank_must_have_closed(tmp_path, other_end, status):
    # given
    header = RunHeader(run_id="r", backend="torch", world_size=2, created=1.0, out=str(tmp_path))
    folders = [create_run(tmp_path, header)]
    folders.append(join_run(tmp_path, header, attempt=1, folder=str(folders[0].path)))
    for rank, end in ((0, "closed"), (1, other_end)):
        recorder = Recorder(folders[rank], rank=rank)
        for step in range(1, 21):
            recorder.put(StepRow(step, 2.0, 1.0, 1e-3, num_tokens=10))
        if end is not None:
            recorder.put(Event("end", 20, 3.0 + rank, {"reason": end}))
        recorder.close()
    # then
    assert finished(read_evidence(folders[0].path)).status == status


@pytest.mark.parametrize(
    "text",
    ["step,loss,lr,grad_norm\n1,2.0,1e-3,1.0\n2,1.9,1e-3,1.0\n", "step,loss\n1,2.0\n2,1.9\n"],
    ids=["rates", "losses"],
)
def test_of_another_tools_log_what_it_does_not_hold_is_unknown_and_nothing_is_passed_by_guess(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    evidence = read_evidence(tmp_path / "metrics.csv")
    statuses = {name: gate(evidence).status for name, gate in LOG_GATES.items()}
    nonfinite = statuses.pop("nonfinite_steps")
    assert nonfinite == ("passed" if "grad_norm" in text else "unknown")
    assert set(statuses.values()) == {"unknown"}


def test_a_log_without_a_step_is_an_error(tmp_path):
    folder = create_run(tmp_path, RunHeader(run_id="r", backend="torch"))
    recorder = Recorder(folder)
    recorder.put(Event("note", 1, 1.0, {}))
    recorder.close()
    with pytest.raises(LogError, match="no training step was recorded"):
        read_evidence(folder.path)


def test_of_several_runs_in_a_file_the_last_is_judged(tmp_path):
    norms = [[1.0] * 30, [1.0] * 30]
    norms[0][4] = "nan"
    lines = [f"{step},2.0,{norm}\n" for run in norms for step, norm in enumerate(run, start=1)]
    (tmp_path / "metrics.csv").write_text("step,loss,grad_norm\n" + "".join(lines))
    evidence = read_evidence(tmp_path / "metrics.csv")
    assert (len(evidence.runs), evidence.chunk.num_steps) == (2, 30)
    assert nonfinite_steps(evidence).status == "passed"


def test_progress_tells_every_byte_once(run):
    run.attempt(1, 50)
    log, told = open_log(run.folder), []
    read_evidence(log, progress=told.append)
    assert sum(told) == log.size_bytes
