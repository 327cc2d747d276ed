"""The rule `robust`: floors, strictness, any sign, and how a level shift ends."""

import math

import pytest

from trimtab.errors import UsageError
from trimtab.rules.robust import RobustRule


def rule_behind(values: list[float], **settings: float) -> RobustRule:
    rule = RobustRule(**settings)  # type: ignore[arg-type]
    rule.replace(values)
    return rule


def test_the_scale_is_the_noise_of_the_window() -> None:
    # given a median of 2 and deviations of 0.5 around it
    rule = rule_behind([1.5, 2.5] * 10)

    # when
    verdict = rule.judge(9.5)

    # then
    assert (verdict.baseline, verdict.scale) == (2.0, 1.4826 * 0.5)
    assert verdict.threshold == 2.0 + 10 * (1.4826 * 0.5)
    assert verdict.reason == "spike"
    assert rule.judge(9.4).reason == "normal"


def test_the_scale_is_never_below_two_percent_of_the_median() -> None:
    assert rule_behind([2.5] * 20).judge(2.5).scale == 0.02 * 2.5
    assert rule_behind([-2.5] * 20).judge(2.5).scale == 0.02 * 2.5


def test_the_scale_is_never_below_half_a_last_digit() -> None:
    assert rule_behind([0.0] * 20).judge(0.0).scale == 5e-5


@pytest.mark.parametrize(
    ("behind", "loss"),
    [
        ([2.5] * 100, 2.5078),  # one bf16 step
        ([0.0001] * 20, 0.0002),  # one last digit of four
        ([0.0001] * 20, 0.0003),
        ([0.0] * 20, 0.0),
    ],
)
def test_rounding_is_no_spike(behind: list[float], loss: float) -> None:
    assert rule_behind(behind).judge(loss).reason == "normal"


def test_exactly_k_scales_is_normal() -> None:
    # given a scale of 2 % of 50 = 1 and k = 10, all exact
    rule = rule_behind([50.0] * 20)

    assert rule.judge(60.0).reason == "normal"
    assert rule.judge(60.000004).reason == "spike"


def test_nineteen_behind_are_warm_up_and_twenty_are_not() -> None:
    assert rule_behind([1.0] * 19).judge(100.0).reason == "warmup"
    assert rule_behind([1.0] * 20).judge(100.0).reason == "spike"


def test_losses_may_be_negative() -> None:
    # given
    losses = [-1 + 0.01 * (i % 7) for i in range(120)]
    rule = RobustRule()

    # when
    reasons = set()
    for loss in losses:
        reasons.add(rule.judge(loss).reason)
        rule.absorb(loss)

    # then
    assert reasons == {"warmup", "normal"}
    assert rule.judge(5.0).reason == "spike"
    assert rule.judge(-50.0).reason == "normal", "a loss far below is no spike"


def flags_after_a_level_shift(*, absorb_all: bool) -> int:
    rule = rule_behind([1.0] * 100)
    num_flags = 0
    for _ in range(400):
        verdict = rule.judge(4.0)
        num_flags += verdict.reason == "spike"
        if verdict.keep or absorb_all:
            rule.absorb(4.0)
    return num_flags


def test_a_level_shift_ends_where_every_value_enters() -> None:
    assert flags_after_a_level_shift(absorb_all=True) == 50


def test_a_level_shift_never_ends_where_spikes_stay_out() -> None:
    assert flags_after_a_level_shift(absorb_all=False) == 400


def test_the_needed_k_is_the_one_that_would_have_kept_it() -> None:
    # given a scale of 1 around 50
    rule = rule_behind([50.0] * 20)
    needed = rule.needed(rule.judge(75.0))

    assert (rule.sensitivity, needed) == ("k", 25.0)
    assert rule_behind([50.0] * 20, k=needed).judge(75.0).reason == "normal"


@pytest.mark.parametrize("k", [0.0, -1.0, math.nan, math.inf, True, "10"])
def test_a_k_that_makes_no_sense_is_refused(k: float) -> None:
    with pytest.raises(UsageError, match="a finite number above 0") as error:
        RobustRule(k)
    assert repr(k) in str(error.value)
