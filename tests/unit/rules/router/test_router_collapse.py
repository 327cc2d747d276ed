"""What counts as collapse, and what is a young or a specialised router."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from trimtab.watched import LayerFigures, RouterReport, WatchFinding

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]

BALANCED = (1_000,) * 8
CROWDED = (7_860, 20, 20, 20, 20, 20, 20, 20)
LN8 = math.log(8)


def layer(*, counts: tuple[int, ...] | None, entropy: float | None, spread: float | None) -> LayerFigures:
    return LayerFigures(name="moe", num_experts=8, top_k=1, counts=counts, token_entropy=entropy, spread=spread)


@pytest.mark.parametrize(
    ("figures", "way"),
    [
        (layer(counts=CROWDED, entropy=LN8, spread=0.0), "uniform"),
        (layer(counts=CROWDED, entropy=0.01, spread=40.0), "one_hot"),
        (layer(counts=CROWDED, entropy=1.2, spread=5.0), "load"),
        (layer(counts=CROWDED, entropy=1.2, spread=None), "load"),
        (layer(counts=CROWDED, entropy=None, spread=None), "load"),
        (layer(counts=CROWDED, entropy=math.nan, spread=math.inf), "load"),
    ],
    ids=["uniform", "one_hot", "load", "spread_unknown", "counts_alone", "not_finite"],
)
def test_a_load_on_few_experts_is_a_collapse_whose_way_the_confidence_tells(
    said: SaidOf, reports: ReportsOf, figures: LayerFigures, way: str
) -> None:
    (finding,) = said(reports([figures] * 1, [figures], [figures]))

    assert (finding.kind, finding.severity, finding.marks_unhealthy) == ("collapse", "critical", True)
    assert finding.figures["layers"]["moe"]["way"] == way


@pytest.mark.parametrize(
    "figures",
    [
        layer(counts=BALANCED, entropy=LN8, spread=0.01),
        layer(counts=BALANCED, entropy=0.005, spread=30.0),
        layer(counts=BALANCED, entropy=1.5, spread=3.0),
        layer(counts=(2_900, 1_500, 900, 700, 600, 600, 500, 300), entropy=1.5, spread=3.0),
        layer(counts=None, entropy=0.001, spread=30.0),
    ],
    ids=["young", "specialised", "ordinary", "uneven", "sure_of_unknown_loads"],
)
def test_a_router_that_is_not_crowded_is_no_collapse(said: SaidOf, reports: ReportsOf, figures: LayerFigures) -> None:
    assert not said(reports(*[[figures]] * 5))


def test_one_expert_that_every_token_goes_to_beside_others_is_no_collapse(said: SaidOf, reports: ReportsOf) -> None:
    # given a shared expert in all but name: all tokens go there, and their second choices are balanced
    shared = LayerFigures(name="moe", num_experts=8, top_k=2, counts=(7_000, *[1_000] * 7), token_entropy=1.5)

    assert not said(reports(*[[shared]] * 5))


def first_choice(**changes: object) -> LayerFigures:
    """Every first choice is one expert, and the second choices, behind a probability of 1, spread."""
    usual = LayerFigures(
        name="moe",
        num_experts=8,
        top_k=2,
        num_tokens=7_000,
        counts=(7_000, *[1_000] * 7),
        token_entropy=3e-10,
        spread=40.0,
        load_balance=4.0,
    )
    return replace(usual, **changes)


@pytest.mark.parametrize("begin", [50, 2_000], ids=["young", "later"])
def test_a_router_that_is_sure_of_one_expert_for_all_tokens_has_collapsed_though_its_load_looks_even(
    said: SaidOf, reports: ReportsOf, begin: int
) -> None:
    found = [one for one in said(reports(*[[first_choice()]] * 3, begin=begin)) if one.kind == "collapse"]

    [finding] = found
    assert (finding.severity, finding.marks_unhealthy, finding.step) == ("critical", True, begin)
    assert finding.figures["layers"]["moe"]["way"] == "first_choice"
    assert "load entropy 1.67 and token entropy 3e-10 of 2.08 nats" in finding.text


@pytest.mark.parametrize(
    "figures",
    [
        first_choice(token_entropy=1.5),
        first_choice(counts=(6_000, *[1_143] * 6, 1_142)),
        first_choice(token_entropy=None, spread=None),
        first_choice(counts=(2, 1, 1, 0, 0, 0, 0, 0), num_tokens=2),
    ],
    ids=["shared_expert", "most_tokens", "confidence_unknown", "two_tokens"],
)
def test_what_only_looks_like_one_first_choice_is_no_collapse(
    said: SaidOf, reports: ReportsOf, figures: LayerFigures
) -> None:
    assert not [one for one in said(reports(*[[figures]] * 3)) if one.kind == "collapse"]


def test_logits_that_are_not_finite_are_one_finding(said: SaidOf, reports: ReportsOf) -> None:
    # given what top-k makes of NaN: the first experts, always
    sound = first_choice(counts=(1_750,) * 8, token_entropy=1.5, spread=3.0, z=9.0, lse=3.0, load_balance=1.0)
    broken = replace(
        sound, z=math.nan, lse=math.nan, counts=(7_000, 7_000, *[0] * 6), token_entropy=math.nan, load_balance=math.nan
    )

    [finding] = said(reports([sound], *[[broken]] * 20))

    assert (finding.kind, finding.severity) == ("z_band", "critical")


def test_two_tokens_on_one_expert_are_chance(said: SaidOf, reports: ReportsOf) -> None:
    assert not said(reports([layer(counts=(2, 0, 0, 0, 0, 0, 0, 0), entropy=1.5, spread=3.0)]))


def test_a_balanced_router_that_had_learnt_and_is_uniform_again_has_collapsed(said: SaidOf, reports: ReportsOf) -> None:
    young = layer(counts=BALANCED, entropy=LN8, spread=0.01)
    learnt = layer(counts=BALANCED, entropy=1.4, spread=3.0)

    fading = layer(counts=BALANCED, entropy=0.96 * LN8, spread=1.0)

    assert not said(reports([young], [learnt], [learnt]))
    assert not said(reports([young], [fading], [young]))
    assert [finding.step for finding in said(reports([learnt], [fading], [young]))] == [2_100]
    (finding,) = said(reports([young], [learnt], [young], [young]))

    assert finding.figures["layers"]["moe"]["way"] == "forgot"
    assert finding.step == 2_100


def test_a_layer_that_flickers_about_the_bound_is_said_once_and_again_only_after_it_was_back(
    said: SaidOf, reports: ReportsOf
) -> None:
    crowded = layer(counts=CROWDED, entropy=1.2, spread=5.0)
    nearly = layer(counts=(6_500, 500, 300, 200, 150, 150, 100, 100), entropy=1.2, spread=5.0)
    balanced = layer(counts=BALANCED, entropy=1.2, spread=5.0)

    found = said(reports([crowded], [nearly], [crowded], [balanced], [crowded]))

    assert [finding.step for finding in found] == [2_000, 2_200]


def test_layers_that_collapse_together_are_one_finding_and_a_later_one_is_another(
    said: SaidOf, reports: ReportsOf
) -> None:
    crowded, balanced = (layer(counts=counts, entropy=1.2, spread=5.0) for counts in (CROWDED, BALANCED))
    layers = [[replace(one, name=name) for name in ("a", "b", "c")] for one in (crowded, balanced)]

    found = said(reports([*layers[0][:2], layers[1][2]], layers[0]))

    assert [(finding.step, finding.layers) for finding in found] == [(2_000, ("a", "b")), (2_050, ("c",))]


def test_a_name_from_a_stranger_is_shown_as_plain_text(said: SaidOf, reports: ReportsOf) -> None:
    (finding,) = said(reports([replace(layer(counts=CROWDED, entropy=1.2, spread=5.0), name="a\x1b[31m\nb")]))

    assert finding.text.isascii()
    assert finding.text.isprintable()
    assert finding.layers == ("a\x1b[31m\nb",)
