"""The router z: its band by itself and beside entropies, its growth, its scale."""

import math
from collections.abc import Callable

import pytest

from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding, ZScale

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]

LN8 = math.log(8)


def layer(z: float, *, entropy: float | None = None, counts: tuple[int, ...] | None = None) -> LayerFigures:
    spread = None if entropy is None else 3.0
    return LayerFigures(name="moe", num_experts=8, top_k=1, z=z, counts=counts, token_entropy=entropy, spread=spread)


@pytest.mark.parametrize("entropy", [1.3, 0.01], ids=["ordinary", "sure"])
def test_a_z_loss_that_holds_z_near_0_over_a_router_that_works_is_a_notice_at_most(
    said: SaidOf, reports: ReportsOf, entropy: float
) -> None:
    held = layer(0.02, entropy=entropy, counts=(900, 1_100, 1_000, 1_000, 950, 1_050, 980, 1_020))

    (finding,) = said(reports([layer(12.0, entropy=entropy)], *[[held]] * 5))

    assert (finding.kind, finding.severity, finding.marks_unhealthy) == ("z_band", "notice", False)


def test_a_low_z_over_a_crowded_router_marks_a_checkpoint_without_any_history(said: SaidOf, reports: ReportsOf) -> None:
    found = said(reports([layer(0.02, entropy=1.3, counts=(7_900, 20, 20, 20, 10, 10, 10, 10))]))

    assert [(finding.kind, finding.marks_unhealthy) for finding in found] == [("collapse", True), ("z_band", True)]


def test_a_low_z_alone_is_a_warning_that_does_not_say_which_fault_it_is(said: SaidOf, z_reports: ReportsOf) -> None:
    (finding,) = said(z_reports([0.4]))

    assert (finding.kind, finding.severity, finding.marks_unhealthy) == ("z_band", "warning", False)
    assert "z does not" in finding.text


def test_a_z_that_wanders_about_the_lower_bound_is_said_once_and_marks_nothing(
    said: SaidOf, z_reports: ReportsOf
) -> None:
    (finding,) = said(z_reports([1.2, 0.95, 1.1, 0.9, 1.3, 0.98]))

    assert not finding.marks_unhealthy


def test_a_low_z_that_becomes_a_fallen_one_is_said_again(said: SaidOf, z_reports: ReportsOf) -> None:
    found = said(z_reports([1.2, 0.95, 0.1, 0.05]))

    assert [(finding.step, finding.marks_unhealthy) for finding in found] == [(2_050, False), (2_100, True)]


def test_a_high_z_is_hot_only_while_it_rises(said: SaidOf, z_reports: ReportsOf) -> None:
    assert not said(z_reports([300.0, 290.0, 310.0, 295.0, 305.0]))

    kinds = {finding.kind: finding for finding in said(z_reports([120.0, 135.0, 150.0, 170.0]))}

    assert list(kinds) == ["z_band"]
    assert "above its band of 1 to 150" in kinds["z_band"].text
    assert not kinds["z_band"].marks_unhealthy


@pytest.mark.parametrize("z", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus_inf"])
def test_logits_that_are_not_finite_are_critical_and_leave_the_course_as_it_was(
    said: SaidOf, reports: ReportsOf, z: float
) -> None:
    found = said(reports([layer(9.0)], [layer(z)], [layer(z)], [layer(9.1)], [layer(z)]))

    assert [(finding.kind, finding.severity, finding.step) for finding in found] == [
        ("z_band", "critical", 2_050),
        ("z_band", "critical", 2_200),
    ]
    assert found[0].marks_unhealthy


@pytest.mark.parametrize(("scale", "z", "is_low"), [("sum", 0.5, True), ("mean", 0.5, False), ("layer", 0.2, True)])
def test_each_scale_has_its_own_band(said: SaidOf, z_reports: ReportsOf, scale: ZScale, z: float, is_low: bool) -> None:
    assert bool(said(z_reports([z], scale=scale))) == is_low


def test_the_band_is_the_users(said: SaidOf, z_reports: ReportsOf) -> None:
    assert not said(z_reports([0.4]), WatchConfig(z_sum_low=0.1))
    assert said(z_reports([4.0]), WatchConfig(z_sum_low=5.0))


def test_a_router_over_one_expert_or_to_all_of_them_has_no_z_to_judge(said: SaidOf, reports: ReportsOf) -> None:
    assert not said(reports([LayerFigures(name="moe", num_experts=1, top_k=1, z=0.001)]))
    assert not said(reports([LayerFigures(name="moe", num_experts=4, top_k=4, z=0.001)]))


def test_a_young_router_may_sharpen_and_an_old_one_that_rises_alike_grows(said: SaidOf, reports: ReportsOf) -> None:
    zs = [[layer(LN8**2 * part)] for part in (1.0, 1.15, 1.35, 1.6, 1.7, 1.7)]

    assert not said(reports(*zs, begin=50))
    assert [finding.kind for finding in said(reports(*zs, begin=20_000))] == ["logits_growing"]


def test_a_young_router_that_goes_on_growing_is_told_early_too(said: SaidOf, reports: ReportsOf) -> None:
    found = said(reports(*([layer(LN8**2 * 1.2**place)] for place in range(12)), begin=50))

    assert [finding.kind for finding in found] == ["logits_growing"]
    assert found[0].step <= 400


def test_growth_over_hundreds_of_reports_is_seen(said: SaidOf, reports: ReportsOf) -> None:
    # given 0.3 % a report, a factor of 2 in 231 of them
    found = said(reports(*([layer(20.0 * 1.003**place)] for place in range(600))))

    assert [finding.kind for finding in found] == ["logits_growing"]
    assert found[0].figures["layers"]["moe"]["num_reports"] == 256


def test_one_jump_is_no_growth_and_neither_is_the_way_back_up(said: SaidOf, reports: ReportsOf) -> None:
    assert not said(reports(*([layer(z)] for z in (9.0, 9.0, 9.0, 30.0, 30.0, 30.0))))
    found = said(reports(*([layer(z)] for z in (12.0, 0.1, 0.1, 0.8, 3.0, 8.0, 12.0))))
    assert [finding.kind for finding in found] == ["z_band"]


def test_growth_that_ends_and_begins_again_is_said_again(said: SaidOf, reports: ReportsOf) -> None:
    rises = [14, 16, 19, 24, 29, 29, 29, 28, 28, 33, 40, 50]

    found = said(reports(*([layer(float(z))] for z in rises)))

    assert [finding.step for finding in found] == [2_150, 2_500 + 50]


@pytest.mark.parametrize("unknown", [math.nan, 0.0, math.inf, -1.0], ids=["nan", "zero", "inf", "negative"])
def test_a_factor_that_nobody_knows_ends_the_course_and_its_z_is_held_against_no_band(
    said: SaidOf, z_reports: ReportsOf, unknown: float
) -> None:
    after = z_reports([0.02] * 5, steps=range(3_000, 9_000, 50), factor=unknown)

    (finding,) = said([*z_reports([20.0] * 4), *after])

    assert (finding.kind, finding.step, finding.severity) == ("scale_changed", 3_000, "notice")
    assert "not known" in finding.text


def test_a_known_factor_is_taken_out_before_the_band(said: SaidOf, z_reports: ReportsOf) -> None:
    assert not said(z_reports([0.3] * 5, factor=0.01))
    (finding,) = said(z_reports([30.0, 1e-3], factor=0.01))
    assert (finding.kind, finding.figures["z"]) == ("z_band", pytest.approx(0.1))


def test_a_mean_after_a_sum_is_a_change_of_scale(said: SaidOf, z_reports: ReportsOf) -> None:
    after = z_reports([6.0] * 5, scale="mean", steps=range(3_000, 9_000, 50))

    (finding,) = said([*z_reports([84.0] * 5), *after])

    assert (finding.kind, finding.severity) == ("scale_changed", "notice")
    assert "mean over layers" in finding.text
    assert "sum over layers" in finding.text


def test_a_factor_of_100_at_once_that_nobody_named_is_taken_for_another_scale(
    said: SaidOf, z_reports: ReportsOf
) -> None:
    (finding,) = said(z_reports([2.14, 2.15, 214.0, 215.0, 214.0]))

    assert (finding.kind, finding.severity) == ("scale_changed", "notice")
    assert "100 times" in finding.text


def test_a_z_that_falls_by_100_by_itself_is_no_change_of_scale_but_a_fall(said: SaidOf, z_reports: ReportsOf) -> None:
    (finding,) = said(z_reports([40.0, 0.4]))

    assert (finding.kind, finding.marks_unhealthy) == ("z_band", True)


def test_a_rise_within_the_noise_of_the_reports_before_is_no_growth(said: SaidOf, z_reports: ReportsOf) -> None:
    rise = [9.0, 11.0, 13.0, 14.2]

    assert not said(z_reports([10.0, 13.0] * 5 + rise))
    assert [finding.kind for finding in said(z_reports([10.0, 10.1] * 5 + rise))] == ["logits_growing"]


@pytest.mark.parametrize(
    "other", [{"factor": math.nan}, {"scale": "mean"}], ids=["a_factor_nobody_knows", "another_scale"]
)
def test_figures_across_a_change_of_scale_are_no_growth(
    said: SaidOf, z_reports: ReportsOf, other: dict[str, float | str]
) -> None:
    before, after = z_reports([14.0, 16.0, 19.0]), z_reports([24.0], steps=[3_000], **other)

    assert [finding.kind for finding in said([*before, *after])] == ["scale_changed"]
    assert [finding.kind for finding in said([*before, *z_reports([24.0], steps=[3_000])])] == ["logits_growing"]
