"""The rule for gradient norms: one threshold for each amount of history."""

import math

import pytest

from trimtab.rules.norms import NormRule


def rule_behind(values: list[float]) -> NormRule:
    rule = NormRule()
    rule.replace(values)
    return rule


def test_the_first_norm_has_nothing_to_be_compared_with() -> None:
    assert rule_behind([]).judge(1e6).reason == "warmup"


@pytest.mark.parametrize("behind", [[2.0], [100.0, 2.0]])
def test_with_one_or_two_behind_ten_times_the_previous_one_counts(behind: list[float]) -> None:
    rule = rule_behind(behind)

    assert rule.judge(20.0).reason == "normal"
    verdict = rule.judge(20.1)
    assert (verdict.keep, verdict.reason, verdict.baseline, verdict.threshold) == (False, "spike", 2.0, 20.0)


def test_the_previous_one_is_the_previous_finite_one() -> None:
    # given
    rule = rule_behind([2.0])
    rule.absorb(math.inf)

    assert rule.judge(21.0).reason == "spike"


@pytest.mark.parametrize("num_behind", [3, 19])
def test_with_three_to_nineteen_behind_twice_the_median_counts(num_behind: int) -> None:
    rule = rule_behind([2.0] * num_behind)

    assert rule.judge(4.0).reason == "normal"
    verdict = rule.judge(4.1)
    assert (verdict.reason, verdict.baseline, verdict.threshold, verdict.scale) == ("spike", 2.0, 4.0, None)


def test_with_twenty_behind_three_medians_count_where_the_noise_is_small() -> None:
    # given a scale of 2 % of 2 = 0.04, so that ten of them end at 2.4 and three medians at 6
    rule = rule_behind([2.0] * 20)

    assert rule.judge(6.0).reason == "normal"
    verdict = rule.judge(6.1)
    assert (verdict.reason, verdict.threshold, verdict.scale) == ("spike", 6.0, 0.04)


def test_with_twenty_behind_ten_scales_count_where_the_noise_is_large() -> None:
    # given a median of 2 with deviations of 1, so that ten scales end at 16.8 and three medians at 6
    rule = rule_behind([1.0, 3.0] * 10)

    assert rule.judge(16.8).reason == "normal"
    verdict = rule.judge(16.9)
    assert verdict.reason == "spike"
    assert verdict.threshold == pytest.approx(16.826)


@pytest.mark.parametrize("behind", [[0.0], [0.0] * 5])
def test_a_ratio_to_a_norm_of_zero_says_nothing(behind: list[float]) -> None:
    assert rule_behind(behind).judge(1.0).reason == "baseline_not_positive"


@pytest.mark.parametrize("num_behind", [0, 1, 5, 50])
def test_a_norm_that_is_not_finite_is_said_to_be_so(num_behind: int) -> None:
    assert rule_behind([1.0] * num_behind).judge(math.inf).reason == "nonfinite"
