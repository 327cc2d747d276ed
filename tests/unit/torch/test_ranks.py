"""`Ranks`: who is who among several processes, and the sum by which they decide alike."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab import GuardConfig
from trimtab.errors import UsageError
from trimtab.torch.ranks import Ranks


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(Path(__file__).with_name("ranks_of_a_rank.py"))


def test_one_process_is_alone_and_its_figures_are_their_own_sum() -> None:
    ranks = Ranks.of()
    figures = torch.tensor([1.0, 2.0], dtype=torch.float64)

    assert (ranks.rank, ranks.world_size, ranks.alone, ranks.records) == (0, 1, True, True)
    assert ranks.summed(figures) is figures


def test_a_group_without_torch_distributed_is_refused() -> None:
    with pytest.raises(UsageError, match="init_process_group first"):
        Ranks.of(object())  # type: ignore[arg-type]


def test_two_processes_know_their_place(pair: Any) -> None:
    assert pair.call("who") == [[0, 2, False, True], [1, 2, False, True]]


# Ten tokens of loss 30 and 990 of 1; a count that float32 cannot hold; sums that round; a flag of rank 1 alone.
@pytest.mark.parametrize(
    "of_rank",
    [
        [[300.0, 10.0, 0.0], [990.0, 990.0, 0.0]],
        [[0.1, 2.0**24, 0.0], [0.2, 1.0, 1.0]],
        [[3e38, 0.0, 0.0], [3e38, 0.0, 2.0]],
    ],
)
def test_every_rank_gets_the_same_exact_sum_of_a_copy_by_one_collective(pair: Any, of_rank: list[list[float]]) -> None:
    answers = pair.call("summed", of_rank=of_rank)
    expected = [float(Fraction(first) + Fraction(second)) for first, second in zip(*of_rank, strict=True)]
    for rank, answer in enumerate(answers):
        assert [float.fromhex(value) for value in answer["total"]] == expected
        assert answer["figures"] == of_rank[rank]
        assert answer["dtype"] == "torch.float64"
        assert not answer["requires_grad"]
        assert answer["collectives"] == ["allreduce_.default"]


def test_a_sum_is_traced_without_a_graph_break(pair: Any) -> None:
    assert pair.call("summed_compiled", of_rank=[[1.0, 2.0], [10.0, 20.0]]) == [[23.0, 45.0], [23.0, 45.0]]


def test_of_groups_that_train_on_the_same_rows_the_one_of_the_first_process_is_recorded(pair: Any) -> None:
    assert pair.call("in_a_group_of_its_own") == [[0, 1, True, True, True], [0, 1, True, False, True]]


def test_a_group_that_the_process_is_not_in_is_refused(pair: Any) -> None:
    for rank, said in enumerate(pair.call("in_the_group_of_the_other")):
        assert said.startswith(f"Process {rank} is not in the process_group")


def test_ranks_with_other_settings_are_refused_on_both_and_told_what_differs(pair: Any) -> None:
    first = GuardConfig(multiplier=2.0).saved
    second = {**first, "multiplier": 50.0, "window_size": 9}

    for rank, said in enumerate(pair.call("refused_unlike", of_rank=[first, second])):
        own = ["multiplier=2.0, window_size=None", "multiplier=50.0, window_size=9"][rank]
        assert f"rank {rank} has {own}." in said
    assert pair.call("refused_unlike", of_rank=[first, first]) == ["", ""]


def test_one_process_has_nobody_to_differ_from() -> None:
    Ranks.of().refuse_unlike({"multiplier": 2.0})
