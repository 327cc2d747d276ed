"""The rules `mean` and `median`: numbers worked by hand."""

import math
from collections.abc import Sequence

import pytest

from trimtab.errors import UsageError
from trimtab.rules.mean import MeanRule
from trimtab.rules.median import MedianRule
from trimtab.rules.ratio import RatioRule


def judged(rule: RatioRule, losses: Sequence[float]) -> list[str]:
    """Reasons; every finite value enters, as offline."""
    reasons: list[str] = []
    for loss in losses:
        reasons.append(rule.judge(loss).reason)
        rule.absorb(loss)
    return reasons


def test_the_mean_of_the_last_values_is_the_baseline() -> None:
    # given (10.8 + 7.5 + 6.3) / 3 = 8.2
    rule = MeanRule(2.0)
    rule.replace([10.8, 7.5, 6.3])

    # when
    verdict = rule.judge(30.0)

    # then
    assert (verdict.keep, verdict.reason, verdict.loss, verdict.scale) == (False, "spike", 30.0, None)
    assert verdict.baseline == pytest.approx(8.2, rel=1e-6)
    assert verdict.threshold == pytest.approx(16.4, rel=1e-6)


def test_with_four_needed_three_behind_are_warm_up() -> None:
    rule = MeanRule(2.0, min_history=4)
    rule.replace([10.8, 7.5, 6.3])

    verdict = rule.judge(30.0)

    assert (verdict.keep, verdict.reason, verdict.baseline, verdict.threshold) == (True, "warmup", None, None)


@pytest.mark.parametrize("rule", [MeanRule(2.0), MedianRule()])
def test_exactly_the_threshold_is_normal(rule: RatioRule) -> None:
    rule.replace([1.0] * 10)

    assert rule.judge(2.0).reason == "normal"
    assert rule.judge(math.nextafter(2.0, 3.0)).reason == "normal", "that is 2.0 as float32"
    assert rule.judge(2.0 + 2**-22).reason == "spike"


@pytest.mark.parametrize("rule", [MeanRule(2.0), MedianRule()])
@pytest.mark.parametrize("level", [0.0, -1.0])
def test_a_baseline_that_is_not_positive_says_nothing(rule: RatioRule, level: float) -> None:
    rule.replace([level] * 5)

    verdict = rule.judge(50.0)

    assert (verdict.keep, verdict.reason) == (True, "baseline_not_positive")
    assert (verdict.baseline, verdict.threshold) == (level, None)


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 10 + [2.0],
        [1.0, 1.0, 10.0],
        # Twenty steps without a token lie between the third and the last: the caller judges only what was measured.
        [1.0, 1.0, 1.0, 1.5],
        [0.0001] * 20 + [0.0002],
    ],
)
def test_the_median_rule_is_silent(losses: list[float]) -> None:
    assert "spike" not in judged(MedianRule(), losses)


def test_under_the_median_rule_a_spike_that_entered_hides_no_other() -> None:
    losses = [1.0, 1.0, 1.0, 9.0, 1.0, 9.0, 1.0]

    assert judged(MedianRule(), losses) == ["warmup"] * 3 + ["spike", "normal", "spike", "normal"]


def test_the_median_looks_back_at_twenty() -> None:
    # given a level that only the oldest of twenty-one values would pull down
    rule = MedianRule()
    rule.replace([1.0] * 11 + [3.0] * 10)

    # then the median of the last twenty is 2, not 1
    assert rule.judge(4.0).baseline == 2.0
    assert rule.judge(4.0).keep


@pytest.mark.parametrize("rule", [MeanRule(2.0), MedianRule(2.0)])
def test_the_needed_multiplier_is_the_one_that_would_have_kept_it(rule: RatioRule) -> None:
    rule.replace([2.0] * 4)
    verdict = rule.judge(7.0)

    assert (rule.sensitivity, rule.needed(verdict)) == ("multiplier", 3.5)


@pytest.mark.parametrize("multiplier", [1.0, 0.5, 0, -2.0, math.nan, math.inf, True, "2"])
def test_a_multiplier_that_makes_no_sense_is_refused(multiplier: float) -> None:
    for rule in (MeanRule, MedianRule):
        with pytest.raises(UsageError, match="a finite number above 1") as error:
            rule(multiplier)
        assert repr(multiplier) in str(error.value)
