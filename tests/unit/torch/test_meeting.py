"""`StoreMeeting`: how the ranks of a run learn from rank 0 where it is recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.recording import NOT_RECORDED
from trimtab.torch.meeting import meeting_place
from trimtab.torch.ranks import Ranks


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(Path(__file__).with_name("ranks_of_a_rank.py"))


def test_a_process_that_is_alone_meets_nobody() -> None:
    assert meeting_place(Ranks.of(), out="runs") is None


def test_the_word_of_rank_0_arrives_whenever_the_other_asks_and_without_a_collective(pair: Any) -> None:
    # given two runs under one folder and one under another, all begun at once
    first, second = pair.call("meet", outs=["a", "a", "b/"], words=[["one", 1], ["two", 7], ["three", 1]])

    assert second["early"] == [None, None, None]
    assert second["late"] == second["again"] == [["one", 1], ["two", 7], ["three", 1]]
    assert first["collectives"] == second["collectives"] == []


def test_a_later_run_of_the_same_folder_does_not_hear_the_word_of_an_earlier_one(pair: Any) -> None:
    pair.call("meet", outs=["again"], words=[["one", 1]])
    _, second = pair.call("meet", outs=["again"], words=[["two", 1]])

    assert second["early"] == [None]
    assert second["late"] == [["two", 1]]


def test_a_folder_is_the_same_however_its_path_is_spelled(pair: Any) -> None:
    _, second = pair.call("meet", outs=["c/./d/", "c/d"], words=[["one", 1], ["two", 1]])
    assert second["late"] == [["one", 1], ["two", 1]]


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
