"""Where a signal is over again, and what it leaves out: between a bound and its end lies a gap."""

import pytest

from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import Vitals


def kinds(rules: HealthRules) -> list[str]:
    return [one.kind for one in rules.standing()]


def feed(rules: HealthRules, steps: range, **figures: object) -> list[str]:
    """Steps that are alike; what is found in them."""
    usual = {"loss": 2.0, "grad_norm": 1.0, "lr": 1e-3}
    return [finding.kind for step in steps for finding in rules.step(ObservedStep(step=step, **(usual | figures)))]


def test_clipping_is_as_before_when_half_of_its_rise_is_gone() -> None:
    # given 1,000 steps that were not clipped and 100 that were: half of the last 200
    rules = HealthRules()
    feed(rules, range(1, 1_101), clipped=False)
    found = feed(rules, range(1_101, 1_201), clipped=True)
    assert found == ["clip_fraction"]

    feed(rules, range(1_201, 1_331), clipped=False)  # 70 of the last 200
    assert kinds(rules) == ["clip_fraction"]
    feed(rules, range(1_331, 1_351), clipped=False)  # 50
    assert kinds(rules) == []


def test_a_pace_is_back_at_half_of_the_usual_and_not_where_it_is_no_longer_slow() -> None:
    rules = HealthRules()
    feed(rules, range(1, 101), num_tokens=1000, wall_s=10.0)
    assert feed(rules, range(101, 111), num_tokens=1000, wall_s=100.0) == ["throughput"]

    feed(rules, range(111, 126), num_tokens=1000, wall_s=25.0)  # 0.4 of the usual
    assert kinds(rules) == ["throughput"]
    feed(rules, range(126, 136), num_tokens=1000, wall_s=15.0)
    assert kinds(rules) == []


def test_memory_of_a_device_is_enough_again_a_tenth_below_its_budget() -> None:
    rules = HealthRules(WatchConfig(device_memory_budget_bytes=1_000))
    standing = []
    for step, peak in enumerate((1_001, 1_000, 901, 900), start=1):
        rules.vitals(Vitals(step=step, device_peak_bytes=peak, device_total_bytes=2_000))
        standing.append(kinds(rules))
    assert standing == [["device_memory"]] * 3 + [[]]


@pytest.mark.parametrize(
    ("scales", "standing"),
    [((64.0, 32.0, 16.0), ["loss_scale_collapse"]), ((8192.0, 4096.0, 2048.0), [])],
    ids=["at the floor", "above it"],
)
def test_a_loss_scale_that_holds_has_recovered_but_at_its_floor(scales: tuple[float, ...], standing: list[str]) -> None:
    # given
    rules = HealthRules()
    feed(rules, range(1, 201), loss_scale=2 * scales[0])
    found = [
        kind
        for step, scale in enumerate(scales, start=201)
        for kind in feed(rules, range(step, step + 1), loss_scale=scale)
    ]
    assert found == ["loss_scale_collapse"]
    # when
    feed(rules, range(204, 1_500), loss_scale=scales[-1])
    # then
    assert kinds(rules) == standing


def test_a_weight_is_back_below_three_times_its_usual_update() -> None:
    rules = HealthRules()
    seen = []
    for step, ratio in enumerate([0.01] * 20 + [0.15, 0.05, 0.02], start=1):
        feed(rules, range(step, step + 1))
        rules.vitals(Vitals(step=step, update_ratio={"w": ratio}))
        seen.append(kinds(rules))
    assert seen[19:] == [[], ["update_ratio"], ["update_ratio"], []]


@pytest.mark.parametrize(("norm", "found"), [(0.0, []), (1.25, ["grad_norm_stale"])], ids=["0", "a norm"])
def test_a_norm_of_0_on_a_skipped_step_is_nobodys_old_value(norm: float, found: list[str]) -> None:
    rules = HealthRules()
    feed(rules, range(1, 3), grad_norm=norm)
    assert feed(rules, range(3, 4), grad_norm=norm, reason="all_skipped") == found


def test_rises_that_were_warned_of_do_not_become_usual() -> None:
    # given a regression that was warned of and is over at once, with rises of 1
    rules = HealthRules()
    found = [rules.evaluation(10 * place, loss) for place, loss in enumerate((1.0, 2.0, 3.0, 4.0, 0.9), start=1)]
    assert [finding.severity for one in found for finding in one] == ["warning"]
    assert kinds(rules) == []
    # when it becomes worse by a seventh, three times in a row
    again = [rules.evaluation(100 + 10 * place, loss) for place, loss in enumerate((0.95, 1.0, 1.05), start=1)]
    # then
    assert [(finding.severity, finding.marks_unhealthy) for one in again for finding in one] == [("warning", True)]


def test_a_streak_that_a_resume_went_behind_counts_no_more() -> None:
    # given two worse evaluations in a row, and a resume from before the first of them
    rules = HealthRules()
    for step, loss in ((10, 1.0), (20, 1.1), (30, 1.2)):
        assert rules.evaluation(step, loss) == ()
    # then the next one is worse than nothing
    assert [rules.evaluation(step, loss) for step, loss in ((15, 1.3), (25, 1.4), (35, 1.5))] == [()] * 3
    assert [finding.kind for finding in rules.evaluation(45, 1.6)] == ["eval_regression"]
