"""Runs and cases that were published: what is warned of, when, and what is not."""

import math
from collections.abc import Callable

import pytest

from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

DEAD_RUN = {2500: 295.2, 2750: 26.2, 3000: 0.082, 3250: 0.028, 4000: 0.030}
LIVING_RUN = {3010: 196.0, 3170: 125.0, 4000: 134.0, 5000: 101.76, 6000: 95.29}
COUNTS_AT_38350 = (
    (628, 649, 658, 630, 668, 652, 634, 601),
    (654, 627, 632, 676, 586, 646, 647, 652),
    (781, 548, 647, 600, 636, 566, 713, 629),
)

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]


def of_14_layers(zs: dict[int, float], *, parts: int) -> list[RouterReport]:
    """The run with its z spread evenly over 14 layers: `parts` 14 where the column is a sum, 1 where it is a mean."""
    return [
        RouterReport(
            step=step,
            first_step=step - 49,
            layers=tuple(LayerFigures(name=f"moe.{n}", num_experts=48, top_k=2, z=z / parts) for n in range(14)),
        )
        for step, z in zs.items()
    ]


def test_the_dead_run_is_called_at_3000_once_and_marks_its_checkpoints(said: SaidOf, z_reports: ReportsOf) -> None:
    (finding,) = said(z_reports(DEAD_RUN.values(), steps=DEAD_RUN))

    assert (finding.step, finding.kind, finding.severity) == (3000, "z_band", "warning")
    assert finding.marks_unhealthy
    assert finding.figures["z"] == 0.082
    assert "0.082" in finding.text
    assert "keeps falling, from 26.2 at step 2750" in finding.text
    assert "summed over layers" in finding.text


@pytest.mark.parametrize("parts", [14, 1], ids=["a_sum", "a_mean"])
def test_the_dead_run_is_called_at_3000_by_its_layers_whatever_its_column_was(said: SaidOf, parts: int) -> None:
    (finding,) = said(of_14_layers(DEAD_RUN, parts=parts))

    assert (finding.step, finding.kind, finding.marks_unhealthy) == (3000, "z_band", True)
    assert finding.layers == tuple(f"moe.{n}" for n in range(14))
    assert "of a layer" in finding.text


def test_the_dead_run_is_called_by_the_sum_that_is_made_of_its_layers(said: SaidOf) -> None:
    (finding,) = said(of_14_layers(DEAD_RUN, parts=14), WatchConfig(z_band_of="sum"))

    assert (finding.step, finding.kind, finding.layers) == (3000, "z_band", ())
    assert finding.figures["z"] == pytest.approx(0.082)


@pytest.mark.parametrize("config", [WatchConfig(), WatchConfig(z_band_of="sum")], ids=["layer", "sum"])
@pytest.mark.parametrize("zs", [LIVING_RUN, {2500: 295.2}], ids=["living", "2500_alone"])
def test_the_run_that_held_is_no_alarm(
    said: SaidOf, z_reports: ReportsOf, zs: dict[int, float], config: WatchConfig
) -> None:
    assert not said(z_reports(zs.values(), steps=zs), config)
    assert not said(of_14_layers(zs, parts=14), config)
    assert not said(of_14_layers(zs, parts=1), config)


@pytest.mark.parametrize("config", [WatchConfig(), WatchConfig(z_band_of="sum")], ids=["layer", "sum"])
def test_zero_logits_over_48_experts_are_not_hot(said: SaidOf, reports: ReportsOf, config: WatchConfig) -> None:
    # given what routers of 14 layers have that were not trained: 14.99 a layer, 209.8 together
    entropy = math.log(48)
    young = [
        LayerFigures(
            name=f"moe.{n}",
            num_experts=48,
            top_k=2,
            num_tokens=24_000,
            z=entropy**2,
            lse=entropy,
            load_balance=1.0,
            counts=(1_000,) * 48,
            token_entropy=entropy,
            spread=0.01,
        )
        for n in range(14)
    ]

    assert not said(reports(*[young] * 20, begin=50), config)


@pytest.mark.parametrize("num_experts", [None, 8, 48, 64])
def test_a_run_without_z_loss_grows_and_the_same_with_it_does_not(
    said: SaidOf, reports: ReportsOf, num_experts: int | None
) -> None:
    def layers(zs: list[float]) -> list[list[LayerFigures]]:
        return [[LayerFigures(name="moe", num_experts=num_experts, z=z)] for z in zs]

    (finding,) = said(reports(*layers([14, 16, 19, 24])))

    assert (finding.kind, finding.severity, finding.layers) == ("logits_growing", "warning", ("moe",))
    assert "from 14 to 24 over the last 4 reports" in finding.text
    assert not said(reports(*layers([2.4, 2.6, 2.5, 2.7])))


def test_the_first_symptom_is_a_load_balance_above_2_that_rises(said: SaidOf, reports: ReportsOf) -> None:
    found = said(reports(*([LayerFigures(name="moe", load_balance=one)] for one in (1.0, 1.2, 1.6, 2.1, 4.0, 10.8))))

    (finding,) = found
    assert (finding.kind, finding.step) == ("load_balance_rising", 2150)
    assert "2.1" in finding.text


def test_a_load_balance_of_10_8_needs_no_history(said: SaidOf, reports: ReportsOf) -> None:
    (finding,) = said(reports([LayerFigures(name="moe", load_balance=10.8)]))

    assert finding.kind == "load_balance_rising"
    assert "10.8" in finding.text


def test_two_layers_that_collapse_onto_opposite_experts_are_two_collapsed_layers(
    said: SaidOf, reports: ReportsOf
) -> None:
    (finding,) = said(reports([LayerFigures(name="0", counts=(8, 0)), LayerFigures(name="1", counts=(0, 8))]))

    assert (finding.kind, finding.severity, finding.layers) == ("collapse", "critical", ("0", "1"))
    assert finding.marks_unhealthy


def test_zero_logits_with_ties_are_a_uniform_router_and_seven_dead_experts(said: SaidOf, reports: ReportsOf) -> None:
    # given zeros (64, 8): all tokens on the first expert, a load balance of 1.0 and z = (ln 8)^2 = 4.32
    entropy = math.log(8)
    tied = LayerFigures(
        name="moe",
        num_experts=8,
        top_k=1,
        num_tokens=64,
        z=entropy**2,
        lse=entropy,
        load_balance=1.0,
        counts=(64, 0, 0, 0, 0, 0, 0, 0),
        token_entropy=entropy,
        spread=0.0,
    )

    collapse, dead = said(reports([tied]))

    assert (collapse.kind, collapse.figures["layers"]["moe"]["way"]) == ("collapse", "uniform")
    assert "uniform" in collapse.text
    assert (dead.kind, dead.figures["layers"]["moe"]["num_dead"]) == ("dead_experts", 7)
    assert "experts 1, 2, 3, 4, 5, 6 and 7 of 8" in dead.text


@pytest.mark.parametrize("counts", COUNTS_AT_38350, ids=["first", "second", "third"])
@pytest.mark.parametrize("top_k", [1, 2, None])
def test_counts_of_a_healthy_run_warn_of_nothing(
    said: SaidOf, reports: ReportsOf, counts: tuple[int, ...], top_k: int | None
) -> None:
    healthy = LayerFigures(name="moe", num_experts=8, top_k=top_k, counts=counts)

    assert not said(reports(*[[healthy]] * 30))


def test_a_z_that_is_a_hundredth_of_the_squared_logsumexp_is_named(said: SaidOf, reports: ReportsOf) -> None:
    (finding,) = said(reports([LayerFigures(name="moe", z=0.3025, lse=5.5)]))

    assert (finding.kind, finding.severity) == ("scale_changed", "warning")
    assert finding.figures["layers"]["moe"]["ratio"] == pytest.approx(0.01)
    assert "0.01 times" in finding.text


def test_a_mean_of_squares_over_tokens_that_differ_is_no_hidden_factor(said: SaidOf, reports: ReportsOf) -> None:
    # given lse 1 and 3: z is 5.0, and the square of their mean 4.0
    assert not said(reports([LayerFigures(name="moe", z=5.0, lse=2.0)]))


def test_2_14_and_214_are_the_same_router(said: SaidOf, z_reports: ReportsOf) -> None:
    before = z_reports([2.14] * 3, scale="layer", factor=0.01)
    after = z_reports([214.0] * 8, scale="layer", steps=range(3_000, 9_000, 50))

    (finding,) = said([*before, *after])

    assert (finding.kind, finding.severity, finding.step) == ("scale_changed", "notice", 3_000)
    assert "by 1 now, before by 0.01" in finding.text


def test_every_layer_of_a_report_is_judged_though_its_first_one_has_no_figures(
    said: SaidOf, reports: ReportsOf
) -> None:
    # given a dense-like first layer, one whose balance is switched off, and a later one (an MTP head) that collapsed
    late = LayerFigures(name="mtp.moe", top_k=1, counts=(4_000, 0, 0, 0))
    layers = [LayerFigures(name="0"), LayerFigures(name="1", counts=(900, 1_000, 1_100, 1_000)), late]

    kinds = {finding.kind: finding.layers for finding in said(reports(layers))}

    assert kinds == {"collapse": ("mtp.moe",), "dead_experts": ("mtp.moe",)}


def test_what_stands_is_what_was_said_and_is_not_over(z_reports: ReportsOf) -> None:
    rules = RouterRules(WatchConfig())
    for report in z_reports(DEAD_RUN.values(), steps=DEAD_RUN):
        rules.judge(report)
    (standing,) = rules.standing()
    assert (standing.finding.kind, standing.since, standing.finding.step) == ("z_band", 3000, 4000)
    assert standing.because.startswith("z_band since step 3000, last seen at step 4000: router z is 0.03, below ")

    # when z is a little above the bound, and when it is clearly back
    (between, back) = z_reports([1.5, 30.0], steps=[5000, 5250])
    assert not rules.judge(between)
    assert len(rules.standing()) == 1
    rules.judge(back)

    assert not rules.standing()
