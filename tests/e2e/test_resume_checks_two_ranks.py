"""Two real ranks that are resumed: each compares its own rows, and the first speaks for what they have in common."""

from pathlib import Path

import pytest

import trimtab


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("resumed_of_a_rank.py"))


def checks(out):
    events = trimtab.open_log(out).event_list()
    return [
        (event.ranks, event.facts["compared"], event.facts["findings"])
        for event in events
        if event.kind == "resume_check"
    ]


def test_two_ranks_that_go_on_say_so_once(pair, tmp_path):
    # given a state of rank 0, which both load, as from a trainer's checkpoint
    state = pair.call("train", out=str(tmp_path), to=12)[0]["state"]
    # when
    first, second = pair.call("train", out=str(tmp_path), to=24, saved=state)
    # then
    assert first["said"] == ["Trimtab, resume: loss, learning rate and rows continue what came before step 13."]
    assert second["said"] == []
    assert sorted(checks(tmp_path)) == [((0,), ["loss", "learning rate", "rows"], []), ((1,), ["rows"], [])]


def test_a_rank_whose_rows_are_replayed_says_so_for_itself(pair, tmp_path):
    state = pair.call("train", out=str(tmp_path), to=12)[0]["state"]
    first, second = pair.call("train", out=str(tmp_path), to=24, saved=state, wrong_order_on=1)
    assert first["said"] == ["Trimtab, resume: loss, learning rate and rows continue what came before step 13."]
    [line] = second["said"]
    assert line.startswith("Trimtab, resume at step 13 of rank 1: warning: data order replayed")
    [notice] = [notice for notice in trimtab.rewind(tmp_path).notices if "data order replayed" in notice]
    assert notice.startswith("the run resumed at step 13 on rank 1, warning: data order replayed: ")


def test_another_number_of_ranks_has_other_rows_and_is_no_finding(pair, tmp_path):
    state = pair.call("train", out=str(tmp_path), to=12)[0]["state"]
    state["run"]["before"]["num_ranks"] = 4
    pair.call("train", out=str(tmp_path), to=24, saved=state)
    assert sorted(checks(tmp_path)) == [((0,), ["loss", "learning rate"], [])]
