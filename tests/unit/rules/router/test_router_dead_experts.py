"""Experts without a token: how long it takes to say so, and when they are back."""

from collections.abc import Callable

import pytest

from trimtab.watched import LayerFigures, RouterReport, WatchFinding

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]


def layer(*counts: int, top_k: int = 1) -> LayerFigures:
    return LayerFigures(name="moe", num_experts=len(counts), top_k=top_k, counts=counts)


def few_dead(num_dead: int, *, each: int = 100) -> LayerFigures:
    return layer(*[0] * num_dead, *[each] * (48 - num_dead))


def test_a_few_dead_of_many_are_named_and_mark_nothing(said: SaidOf, reports: ReportsOf) -> None:
    (finding,) = said(reports(*[[few_dead(2)]] * 3))

    assert (finding.kind, finding.severity, finding.marks_unhealthy) == ("dead_experts", "warning", False)
    assert finding.figures["layers"]["moe"]["experts"] == [0, 1]
    assert finding.figures["layers"]["moe"]["dead_fraction"] == pytest.approx(2 / 48)
    assert "experts 0 and 1 of 48 got none of 4600 tokens since step 1951" in finding.text


def test_half_of_the_experts_dead_mark_a_checkpoint(said: SaidOf, reports: ReportsOf) -> None:
    (finding,) = said(reports([few_dead(24)]))

    assert finding.marks_unhealthy


def test_eight_tokens_over_64_experts_prove_nothing_and_many_reports_of_them_do(
    said: SaidOf, reports: ReportsOf
) -> None:
    # given 8 tokens a report, which wander over all experts but the last
    tiny = [
        [layer(*(sum((8 * place + n) % 63 == expert for n in range(8)) for expert in range(64)))]
        for place in range(300)
    ]

    assert not said(reports(*tiny[:8]))
    found = said(reports(*tiny))

    assert [finding.figures["layers"]["moe"]["experts"] for finding in found] == [[63]]
    # and 64 * (63 / 64)^T is below 1e-6 from T = 1,142 on
    assert found[0].figures["layers"]["moe"]["num_tokens"] == 1_144


def test_a_window_goes_back_over_reports_to_the_last_token(said: SaidOf, reports: ReportsOf) -> None:
    # given 64 tokens a report, of which 119 together are needed for one expert of eight
    found = said(
        reports([layer(8, 8, 8, 8, 8, 8, 8, 8)], [layer(0, 9, 9, 9, 9, 9, 9, 10)], [layer(0, 9, 9, 9, 9, 9, 9, 10)])
    )

    (finding,) = found
    assert finding.step == 2_100
    assert finding.figures["layers"]["moe"] == {
        "num_experts": 8,
        "num_dead": 1,
        "dead_fraction": 0.125,
        "experts": [0],
        "num_tokens": 128,
        "first_step": 2_001,
    }


def test_more_dead_experts_are_said_again_when_their_number_has_doubled(said: SaidOf, reports: ReportsOf) -> None:
    found = said(reports(*([few_dead(num_dead)] for num_dead in (2, 3, 4, 5, 6, 7, 8))))

    assert [finding.figures["layers"]["moe"]["num_dead"] for finding in found] == [2, 4, 8]


def test_a_stray_token_revives_nobody_and_a_real_share_does(said: SaidOf, reports: ReportsOf) -> None:
    dead, stray, alive = layer(0, 100, 100, 100), layer(1, 100, 100, 100), layer(60, 100, 100, 100)

    assert len(said(reports([dead], [stray], [dead]))) == 1
    assert [finding.step for finding in said(reports([dead], [alive], [dead]))] == [2_000, 2_100]


@pytest.mark.parametrize(
    "odd",
    [
        layer(100),
        layer(100, 100, top_k=2),
        layer(0, 0, 0),
        layer(0, 500, top_k=0),
        layer(0, 500, top_k=9),
        LayerFigures(name="moe", num_experts=7, top_k=1, counts=(0, 900)),
        LayerFigures(name="moe", num_experts=2, top_k=1, counts=(-5, 900)),
        LayerFigures(name="moe", num_experts=0, top_k=1, counts=()),
        LayerFigures(name="moe"),
    ],
    ids=["one_expert", "all_experts", "no_tokens", "k_0", "k_above_e", "other_length", "negative", "empty", "nothing"],
)
def test_counts_that_tell_nothing_are_no_dead_experts(said: SaidOf, reports: ReportsOf, odd: LayerFigures) -> None:
    assert not said(reports(*[[odd]] * 3))
