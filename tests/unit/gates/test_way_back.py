"""Where the gates say to go back to: once, and only where there is something to go back to."""

import math

import pytest
from checkpoints_of_a_chunk import record, save, trip

from trimtab.gates.judging import judge_chunk


def named(path):
    """The sentence that names a checkpoint to go back to."""
    return (
        f"the checkpoint to go back to is {path}, the last one before that is known to be healthy; where a failed gate "
        "names an earlier step, take one from before that"
    )


def told_of(run, folder):
    """The sentences of a report that lead back, and all others."""
    report = judge_chunk(run.path, checkpoints=folder)
    back = [notice for notice in report.notices if "go back to" in notice]
    return back, " ".join([*(gate.text for gate in report.gates), *report.notices]), report


@pytest.mark.parametrize("kind", ["a step that is not finite", "another model"])
def test_the_last_healthy_one_before_is_named_by_its_path_and_never_the_one_that_is_judged(tmp_path, kind):
    # given: checkpoints that all are healthy, by themselves and by the log
    save(tmp_path, 20)
    before, _ = save(tmp_path, 40)
    _, crc32 = save(tmp_path, 60)
    differs = trip(crc32, same=False, differences=["w differs"], num_differences=1)
    more = {"norms": {50: math.nan}} if kind == "a step that is not finite" else {"events": [differs]}
    back, text, report = told_of(record(tmp_path, **more), tmp_path)
    # then
    assert back == [named(before)]
    assert "checkpoint_healthy" not in {gate.name for gate in report.with_status("failed")}
    assert "ckpt pick" not in text


def test_where_there_is_none_nothing_is_advised_that_would_find_it(tmp_path):
    save(tmp_path, 40, healthy=False, unhealthy_because=["w holds nan"])
    save(tmp_path, 50, run_id="another")
    _, crc32 = save(tmp_path, 60)
    differs = trip(crc32, same=False, differences=["w differs"], num_differences=1)
    back, text, _ = told_of(record(tmp_path, events=[differs], norms={50: math.nan}), tmp_path)
    assert back == ["no earlier checkpoint of this run is known to be healthy: begin anew, or go back to one you name"]
    assert "ckpt pick" not in text


def test_it_is_said_where_nothing_was_saved_after_the_last_step(tmp_path):
    before, _ = save(tmp_path, 40)
    back, _, _ = told_of(record(tmp_path, norms={50: math.nan}), tmp_path)
    assert back == [named(before)]


def test_a_checkpoint_that_is_not_healthy_names_the_last_one_that_is_itself(tmp_path):
    save(tmp_path, 40)
    save(tmp_path, 60, healthy=False)
    back, text, _ = told_of(record(tmp_path, norms={50: math.nan}), tmp_path)
    assert back == []
    assert "the last healthy one is step_40" in text


@pytest.mark.parametrize("saved", [40, 60], ids=["a save is missing", "nothing failed"])
def test_a_chunk_that_nothing_speaks_against_leads_nowhere(tmp_path, saved):
    save(tmp_path, saved)
    back, _, _ = told_of(record(tmp_path), tmp_path)
    assert back == []
