"""What is judged by its course: a z of an unknown factor that falls, a load balance that rises ever faster."""

import math
from collections.abc import Callable

import pytest

from trimtab.watched import LayerFigures, RouterReport, WatchFinding

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]

DIED = [295.2, 26.2, 0.082, 0.028, 0.030]


def test_a_z_times_an_unknown_weight_that_falls_as_that_of_the_run_that_died_is_warned_of(
    said: SaidOf, z_reports: ReportsOf
) -> None:
    steps = [2_500, 2_750, 3_000, 3_250, 4_000]

    [finding] = said(z_reports([z * 1e-3 for z in DIED], steps=steps, factor=math.nan))

    assert (finding.kind, finding.severity, finding.step) == ("z_band", "warning", 3_000)
    assert finding.marks_unhealthy
    assert "fell from 0.2952 to 8.2e-05, to 1/3600" in finding.text
    assert "its factor is not known" in finding.text


@pytest.mark.parametrize(
    "zs",
    [[196.0, 125.0, 134.0, 101.76, 95.29], [1_000.0, 200.0, 40.0, 12.0, 8.0], [15.0, 9.0, 6.0, 4.0, 2.0, 1.0, 0.5]],
    ids=["held", "from_hot", "slowly"],
)
def test_a_z_times_an_unknown_weight_that_falls_as_healthy_ones_do_is_not(
    said: SaidOf, z_reports: ReportsOf, zs: list[float]
) -> None:
    assert not said(z_reports([z * 1e-4 for z in zs], factor=math.nan))


def test_a_z_of_unknown_factor_that_is_back_may_fall_again(said: SaidOf, z_reports: ReportsOf) -> None:
    found = said(z_reports([0.3, 0.3, 1e-5, 1e-5, 0.3, 0.3, 1e-5], factor=math.nan))

    assert [finding.step for finding in found if finding.kind == "z_band"] == [2_100, 2_300]


def balances(*values: float) -> list[list[LayerFigures]]:
    return [[LayerFigures(name="moe", num_experts=8, top_k=2, load_balance=value)] for value in values]


@pytest.mark.parametrize("before", [0, 12], ids=["young", "after_a_level_course"])
def test_a_load_balance_that_rises_faster_and_faster_is_said_when_it_is_above_two(
    said: SaidOf, reports: ReportsOf, before: int
) -> None:
    level = [1.02 + 0.01 * (-1) ** place for place in range(before)]
    rising = [1.01, 1.02, 1.01, 1.03, 1.1, 1.2, 1.5, 1.8, 2.1, 2.5, 3.0, 3.5, 4.2]

    [finding] = said(reports(*balances(*level, *rising)))

    assert finding.kind == "load_balance_rising"
    assert finding.figures["layers"]["moe"]["load_balance"] == 2.1


@pytest.mark.parametrize("z", [-1.0, -1e-9, -1e300], ids=["one", "tiny", "huge"])
def test_a_figure_below_zero_is_no_z(said: SaidOf, z_reports: ReportsOf, z: float) -> None:
    assert not said(z_reports([9.0, z, 9.0, z]))


def test_a_z_of_zero_is_told_as_zero(said: SaidOf, z_reports: ReportsOf) -> None:
    [finding] = said(z_reports([9.0, 0.0]))

    assert "router z is 0, below its band" in finding.text
    assert finding.figures["z"] == 0.0


def test_the_figure_of_one_layer_is_not_told_of_two(said: SaidOf, reports: ReportsOf) -> None:
    layers = [LayerFigures(name="a", z=0.2094), LayerFigures(name="b", z=0.0191)]

    [finding] = said(reports(layers))

    assert "router z in layer a is 0.2094" in finding.text
    assert "likewise in layer b" in finding.text
