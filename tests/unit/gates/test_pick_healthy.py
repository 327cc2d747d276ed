"""The last healthy checkpoint of a run by its log, and that the gate of a chunk says the same of it."""

import pytest
from checkpoints_of_a_chunk import judge, record, save

from trimtab.errors import CheckpointError
from trimtab.gates.pick_healthy import pick_healthy
from trimtab.log.folder import create_run
from trimtab.values import RunHeader

WORSE = {10: 3.57, 20: 3.94, 40: 4.54, 60: 4.99}


def diverged(first, last):
    """Losses of a run that never came back."""
    return dict.fromkeys(range(first, last + 1), 9.0)


def names(info):
    return [info.path.name, *(refused.path.name for refused in info.refused)]


def test_a_divergence_that_the_run_was_taken_back_from_is_chained_to_no_spike_of_the_new_way(tmp_path):
    # given: step 80 on the first way never came back; step 62 on the second did
    run = record(tmp_path, range(1, 101), losses=diverged(80, 100))
    record(tmp_path, range(41, 71), folder=run, losses={62: 9.0})
    save(tmp_path, 40)
    save(tmp_path, 70)
    # then: of the chunk's checkpoint the gate says what pick does
    assert judge(run, tmp_path)["checkpoint_healthy"].status == "passed"
    assert names(pick_healthy(tmp_path)) == ["step_70"]


def test_what_was_saved_on_the_way_that_a_run_was_taken_back_from_is_held_against_that_way(tmp_path):
    # given: the way back has only just begun, and nothing was saved on it
    run = record(tmp_path, range(1, 101), losses=diverged(80, 100))
    record(tmp_path, range(41, 46), folder=run)
    for step in (40, 60, 90):
        save(tmp_path, step)
    info = pick_healthy(tmp_path)
    assert names(info) == ["step_60", "step_90"]
    assert "the trouble began at step 80" in info.refused[0].reason
    assert "that the run was taken back from" in info.refused[0].reason


def test_a_finding_of_the_way_that_a_run_was_taken_back_from_speaks_against_what_was_saved_there_alone(tmp_path):
    run = record(tmp_path, range(1, 61), evals=WORSE)
    record(tmp_path, range(31, 36), folder=run)
    for step in (10, 30, 50):
        save(tmp_path, step)
    info = pick_healthy(tmp_path)
    assert names(info) == ["step_30", "step_50"]
    assert "after step 10, the last known to be well before eval_regression" in info.refused[0].reason


@pytest.mark.parametrize(
    ("recorded", "saved"),
    [
        ({}, {}),
        ({"losses": diverged(50, 60)}, {}),
        ({"evals": WORSE}, {}),
        ({}, {"healthy": False, "unhealthy_because": ["w holds nan"]}),
        ({}, {"healthy": False, "unhealthy_because": ["w holds nan"], "unhealthy_since": 25}),
        ({"losses": {50: 9.0}}, {}),
    ],
    ids=["quiet", "diverged", "evaluations", "says so itself", "says since when", "came back"],
)
def test_the_gate_passes_what_pick_would_take_and_names_what_it_takes_instead(tmp_path, recorded, saved):
    run = record(tmp_path, **recorded)
    for step in (5, 20, 40):
        save(tmp_path, step)
    save(tmp_path, 60, **saved)
    picked = pick_healthy(tmp_path).path
    gate = judge(run, tmp_path)["checkpoint_healthy"]
    assert (gate.status == "passed") == (picked.name == "step_60")
    assert gate.figures["last_healthy"] == str(picked)


def test_where_the_log_leaves_none_the_error_says_what_the_log_said(tmp_path):
    record(tmp_path, evals=WORSE)
    save(tmp_path, 40)
    with pytest.raises(CheckpointError, match="none of its checkpoints is a healthy one") as caught:
        pick_healthy(tmp_path)
    assert "has a finding against the checkpoints after step 10 to the end of the log" in str(caught.value)


def test_a_log_that_is_gone_or_cannot_be_read_changes_nothing_and_that_is_said(tmp_path):
    save(tmp_path, 40)
    assert "no log of run r-1 is at hand" in " ".join(pick_healthy(tmp_path).notices)
    # and one with a header alone
    folder = create_run(tmp_path, RunHeader(run_id="r-1", backend="torch", created=1.0))
    info = pick_healthy(tmp_path)
    assert info.path.name == "step_40"
    assert f"the run's log was not looked at: {folder.path}" in " ".join(info.notices)


def test_a_quiet_log_does_not_contradict_what_a_manifest_says(tmp_path):
    record(tmp_path)
    save(tmp_path, 40)
    assert pick_healthy(tmp_path).notices[-1].endswith("shows no trouble that it did not come back from")
    save(tmp_path, 50, healthy=False, unhealthy_because=["layer.weight holds nan"])
    assert pick_healthy(tmp_path).notices[-1].endswith("has no more against it than the checkpoints say themselves")
