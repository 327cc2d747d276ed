"""`StoreMeeting`: how the ranks of a run learn from rank 0 where it is recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.recorder.meeting import NOT_RECORDED
from trimtab.torch.meeting import meeting_place
from trimtab.torch.ranks import Ranks
from trimtab.values import RunHeader


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(Path(__file__).with_name("ranks_of_a_rank.py"))


def test_a_process_that_is_alone_meets_nobody() -> None:
    assert meeting_place(Ranks.of(), out="runs", header=RunHeader(run_id=None, backend="torch"), guard=None) is None


def test_the_word_of_rank_0_arrives_whenever_the_other_asks_and_without_a_collective(pair: Any) -> None:
    # given two runs under one folder and one under another, all begun at once
    words = [["one", 1, "/disk/one"], ["two", 7, "/disk/two"], ["three", 1, "/disk/three"]]
    first, second = pair.call("meet", outs=["a", "a", "b/"], words=words)

    assert second["early"] == [None, None, None]
    assert (
        second["late"]
        == second["again"]
        == [["one", 1, "/disk/one"], ["two", 7, "/disk/two"], ["three", 1, "/disk/three"]]
    )
    assert first["collectives"] == second["collectives"] == []


def test_a_later_run_of_the_same_folder_does_not_hear_the_word_of_an_earlier_one(pair: Any) -> None:
    pair.call("meet", outs=["again"], words=[["one", 1, "/disk/one"]])
    _, second = pair.call("meet", outs=["again"], words=[["two", 1, "/disk/two"]])

    assert second["early"] == [None]
    assert second["late"] == [["two", 1, "/disk/two"]]


def test_a_folder_is_the_same_however_its_path_is_spelled(pair: Any) -> None:
    _, second = pair.call("meet", outs=["c/./d/", "c/d"], words=[["one", 1, "/disk/one"], ["two", 1, "/disk/two"]])
    assert second["late"] == [["one", 1, "/disk/one"], ["two", 1, "/disk/two"]]


def test_what_rank_0_alone_trained_before_is_passed_by_and_the_next_runs_are_still_the_same(pair: Any) -> None:
    _, second = pair.call("meet_after_others", out="g", num_others=2)
    assert second == [["own 1", 1, "/d"], ["own 2", 1, "/d"]]


def test_a_run_of_another_guard_is_another_one_though_it_has_not_ended(pair: Any) -> None:
    _, second = pair.call("meet_beside_another_guard", out="h")
    assert second == ["own", 1, "/d"]


def test_where_rank_0_has_ended_and_begins_no_other_its_run_is_that_of_a_rank_that_comes_late(pair: Any) -> None:
    _, second = pair.call("meet_late", out="i")
    assert second == {"before": None, "at_end": ["one", 1, "/d"], "next": ["two", 1, "/d"]}


def test_torch_still_hands_out_its_default_store(pair: Any) -> None:
    assert pair.call("the_store_is_there") == [[True, False], [True, False]]


def test_without_a_store_no_rank_but_0_is_recorded_and_one_line_says_so(pair: Any) -> None:
    for _ in range(2):
        assert pair.call("meet_without_a_store", out="e") == [[list(NOT_RECORDED)], [list(NOT_RECORDED)]]
    for said in pair.said():
        assert said.count("2 processes train, and this torch has no store") == 1
        assert "rank 0 is recorded alone" in said


def test_where_the_host_of_the_store_is_gone_nothing_is_raised_and_one_line_says_so(pair: Any) -> None:
    assert pair.call("meet_where_the_store_is_gone", out="f")[1] == [list(NOT_RECORDED)]
    assert "Rank 1 cannot use the store of torch.distributed" in pair.said()[1]
    assert "connection reset by peer" in pair.said()[1]
