"""Counts that do not add up, and load balance."""

from collections.abc import Callable

import pytest

from trimtab.watched import LayerFigures, RouterReport, WatchFinding

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]


def report(*layers: LayerFigures, expected_tokens: int | None = None) -> list[RouterReport]:
    return [RouterReport(step=50, first_step=1, layers=layers, expected_tokens=expected_tokens)]


def layer(*counts: int, num_tokens: int | None, top_k: int | None = 2, name: str = "moe") -> LayerFigures:
    return LayerFigures(name=name, num_experts=len(counts), top_k=top_k, num_tokens=num_tokens, counts=counts)


def test_counts_twice_the_tokens_name_the_factor_and_where_it_comes_from(said: SaidOf) -> None:
    (finding,) = said(report(layer(1_000, 1_000, 1_000, 1_000, num_tokens=1_000)))

    assert (finding.kind, finding.severity) == ("counts_mismatch", "warning")
    assert "4000 experts chosen for its tokens x k, expected 2000, 2 times as many" in finding.text
    assert "activation checkpointing" in finding.text
    assert finding.figures["layers"]["moe"]["ratio"] == 2.0


def test_a_layer_that_saw_three_times_the_tokens_of_the_model_is_named(said: SaidOf) -> None:
    seen = layer(1_500, 1_500, 1_500, 1_500, num_tokens=3_000)

    (finding,) = said(report(seen, expected_tokens=1_000))

    assert "3000 tokens at the router of those that went into the model, expected 1000, 3 times" in finding.text


def test_counts_that_are_no_multiple_are_told_with_their_ratio(said: SaidOf) -> None:
    (finding,) = said(report(layer(500, 500, 500, 400, num_tokens=1_000)))

    assert "0.95 times as many" in finding.text
    assert "checkpointing" not in finding.text


@pytest.mark.parametrize(
    "sound",
    [
        layer(500, 500, 500, 500, num_tokens=1_000),
        layer(499, 499, 500, 500, num_tokens=999),
        layer(500, 500, 500, 500, num_tokens=None),
        layer(500, 500, 500, 500, num_tokens=1_000, top_k=None),
        layer(0, 0, 0, 0, num_tokens=0),
        LayerFigures(name="moe"),
    ],
    ids=["all", "a_later_head", "no_tokens_known", "k_not_known", "none", "nothing"],
)
def test_counts_that_add_up_or_cannot_be_compared_are_no_finding(said: SaidOf, sound: LayerFigures) -> None:
    assert not said(report(sound, expected_tokens=1_000))


def test_counts_that_add_up_again_end_the_finding(said: SaidOf) -> None:
    twice, once = layer(1_000, 1_000, num_tokens=1_000, top_k=1), layer(500, 500, num_tokens=1_000, top_k=1)

    assert len(said(report(twice) * 3)) == 1
    assert len(said([*report(twice), *report(once), *report(twice)])) == 2


def test_all_layers_that_were_counted_twice_are_one_finding_with_bounded_figures(said: SaidOf) -> None:
    (finding,) = said(report(*(layer(10, 10, num_tokens=10, top_k=1, name=f"moe.{n}") for n in range(60))))

    assert len(finding.layers) == 60
    assert len(finding.figures["layers"]) == 16
    assert finding.figures["layers_left_out"] == 44
    assert "moe.1, moe.2, moe.3, moe.4 and 55 more" in finding.text


def test_a_load_balance_that_rises_but_stays_below_2_or_is_above_2_but_falls_is_no_finding(
    said: SaidOf, reports: ReportsOf
) -> None:
    def balances(*values: float) -> list[list[LayerFigures]]:
        return [[LayerFigures(name="moe", num_experts=8, top_k=2, load_balance=one)] for one in values]

    assert not said(reports(*balances(1.0, 1.2, 1.5, 1.9)))
    assert not said(reports(*balances(3.9, 3.5, 3.0, 2.5, 2.1, 1.9)))
    assert [finding.step for finding in said(reports(*balances(5.0, 2.5, 1.9, 5.0, 1.2, 5.0)))] == [2_000, 2_250]
