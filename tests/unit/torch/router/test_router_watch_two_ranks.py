"""A router report over two real ranks: one sum of both, the same on each, and the training is as without it."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def pair(rank_pair: Any) -> Any:
    return rank_pair(Path(__file__).with_name("router_watch_of_a_rank.py"))


FIGURES = ("z", "lse", "load_balance", "token_entropy", "spread")


def test_a_report_is_of_both_ranks_tokens_and_the_same_on_each(pair: Any):
    first, second = pair.call("train", wrap="ddp", watched=True)
    expected, _ = pair.call("alone", steps=[2, 3])

    assert first["reports"] == second["reports"]
    report = first["reports"][0]
    assert report["num_ranks"] == 2
    # Of each rank two micro-batches of two rows, of 10 tokens one or two are padding.
    assert report["expected_tokens"] == expected["expected_tokens"] == 2 * 9 + 2 * 8
    for layer, other in zip(report["layers"], expected["layers"], strict=True):
        assert layer["counts"] == other["counts"]
        assert sum(layer["counts"]) == 2 * 34
        assert {name: layer[name] for name in FIGURES} == pytest.approx({name: other[name] for name in FIGURES})
    assert [layer["name"] for layer in report["layers"]] == ["blocks.0.gate", "blocks.1.gate"]
    assert all(-1.0 <= layer["population_cosine"] <= 1.0 for layer in report["layers"])
    assert [(report["first_step"], report["step"]) for report in first["reports"]] == [(1, 1), (2, 2)]


def test_weights_of_both_ranks_are_bit_for_bit_those_without_a_watch(pair: Any):
    watched = pair.call("train", wrap="ddp", watched=True)
    plain = pair.call("train", wrap="ddp", watched=False)

    assert {rank["weights"] for rank in watched} == {rank["weights"] for rank in plain}
    assert len({rank["weights"] for rank in plain}) == 1


def test_routers_under_fully_shard_are_heard_and_their_sharded_experts_noted(pair: Any):
    first, second = pair.call("train", wrap="fsdp2", watched=True)
    whole, _ = pair.call("train", wrap="ddp", watched=True)

    assert first["reports"][0]["layers"] == second["reports"][0]["layers"]
    report, other = first["reports"][0], whole["reports"][0]
    assert [layer["counts"] for layer in report["layers"]] == [layer["counts"] for layer in other["layers"]]
    assert [layer["population_cosine"] for layer in report["layers"]] == [None, None]
    assert "lie on several ranks: no cosine of populations" in report["notes"][0]


@pytest.mark.parametrize(
    ("how", "counts"),
    [("fewer", {"a": 1, "b": 2}), ("turned", {"a": 2, "b": 2}), ("nan", {"a": 2, "b": 2})],
)
def test_ranks_that_saw_other_layers_report_each_of_them_once(pair: Any, how: str, counts: dict[str, int]):
    first, second = pair.call("one_rank_is_different", how=how)

    assert first["first"] == second["first"]
    assert {name: own[0] for name, own in first["counts"].items()} == counts
    assert set(first["z"].values()) == ({"nan"} if how == "nan" else {first["z"]["a"]} - {"nan"})
    # Later than the layers that the ranks have agreed on: none of their own, so it is said and left out.
    assert first["layers"] == []
    assert any("late: no call was seen before" in note for note in first["notes"])


@pytest.mark.parametrize("report", [1, 2], ids=["first report", "later report"])
@pytest.mark.parametrize("what", ["add", "taken", "packed", "experts"])
def test_a_rank_on_which_something_fails_holds_nobody_and_is_said(pair: Any, what: str, report: int):
    first, second = pair.call("one_rank_fails", what=what, report=report)

    assert first["tokens"] == second["tokens"]
    assert first["expected"] == second["expected"]
    assert first["weights"] == second["weights"]
    broken, sound = report - 1, [step for step in range(3) if step != report - 1]
    if what == "experts":
        assert first["cosines"][broken] == [False, False]
        assert "KeyError" in first["notes"][broken][0]
        assert first["expected"] == [17, 17, 17]
    else:
        assert first["expected"][broken] is None
        assert "could not be summed" in second["notes"][broken][0]
        assert any("on one rank or more" in note for note in first["notes"][broken])
        assert first["tokens"][broken] == [9, 9]  # of rank 0, of whose 10 tokens one is padding
    later = sound if what != "taken" else sound[: report - 1]  # what could not be taken is in the next report
    assert [first["tokens"][step] for step in later] == [[17, 17]] * len(later)


def test_ranks_that_collect_at_different_steps_are_told(pair: Any):
    for report in pair.call("ranks_differ", how="steps"):
        assert any("the ranks collected at different steps" in note for note in report["notes"])


def test_a_layer_with_other_experts_on_another_rank_is_left_out_there_and_said(pair: Any):
    first, second = pair.call("ranks_differ", how="experts")

    assert first["layers"] == second["layers"]
    assert (first["layers"][0]["num_experts"], first["layers"][0]["num_tokens"]) == (4, 2)
    assert any("another rank has another number of experts" in note for note in second["notes"])


def test_ranks_that_send_a_token_to_other_numbers_of_experts_have_their_counts_and_no_k(pair: Any):
    first, second = pair.call("ranks_differ", how="k")

    assert first["layers"] == second["layers"]
    assert sum(first["layers"][0]["counts"]) == 2 * 2 + 2 * 3
    assert first["layers"][0]["top_k"] is None


def test_ranks_that_saw_no_layer_in_their_first_report_agree_in_the_next(pair: Any):
    first, second = pair.call("ranks_differ", how="silent first")

    assert first == second
    assert [layer["num_tokens"] for layer in first["layers"]] == [4]


def test_the_module_inside_of_ddp_that_is_called_by_itself_is_counted_without_its_padding(pair: Any):
    report, _ = pair.call("inner_module_called")

    assert [layer["num_tokens"] for layer in report["layers"]] == [2 * 3 * 9] * 2
    assert (report["expected_tokens"], report["notes"]) == (2 * 3 * 9, [])
