"""Which setting is chosen, and what is said of the evidence."""

import pytest

from trimtab.calibration.choice import choose, on_evidence


def chosen(outcomes, *, num_spikes=3, num_finite=20_000, unit="micro"):
    best, reason = choose(outcomes, num_spikes=num_spikes, num_finite=num_finite, unit=unit)
    return best and best.settings, reason


def test_more_findings_come_before_fewer_others(outcome):
    outcomes = [outcome(sensitivity=7.0, num_caught=3, num_others=15), outcome(num_caught=2)]

    assert chosen(outcomes)[0]["k"] == 7.0


def test_a_setting_that_skips_more_than_one_in_a_thousand_others_is_not_fit(outcome):
    outcomes = [outcome(sensitivity=5.0, num_caught=3, num_others=21), outcome(num_caught=2)]

    assert chosen(outcomes)[0]["k"] == 10.0


def test_of_settings_that_catch_as_much_the_one_with_fewest_others_is_chosen(outcome):
    outcomes = [
        outcome("mean", 2.0, num_caught=3, num_others=5),
        outcome(num_caught=3, num_others=4),
        outcome("mean", 3.0, num_caught=3, num_others=1),
    ]

    best, reason = chosen(outcomes)

    assert best == {"rule": "mean", "multiplier": 3.0, "window_size": 8}
    assert reason.endswith("none catches more of them (3); it skips 1 other.")


def test_a_lock_up_weighs_more_than_others(outcome):
    outcomes = [outcome(num_caught=3, num_rebaselined=1), outcome(sensitivity=20.0, num_caught=3, num_others=9)]

    assert chosen(outcomes)[0]["k"] == 20.0


def test_a_lock_up_that_no_setting_avoids_is_said(outcome):
    outcomes = [outcome(num_caught=1, num_rebaselined=1), outcome("mean", 5.0)]

    best, reason = chosen(outcomes, num_spikes=1)

    assert best["rule"] == "robust"
    assert "It locks up" in reason


def test_equals_are_decided_for_the_default(outcome):
    outcomes = [outcome("mean", 2.0, num_caught=3)] + [
        outcome(sensitivity=k, window_size=size, num_caught=3) for size in (50, 100) for k in (7.0, 10.0, 15.0)
    ]

    assert chosen(outcomes)[0] == {"rule": "robust", "k": 10.0, "window_size": 100}


MEANS = (1.25, 1.5, 2.0, 2.5, 3.0, 5.0)


def test_where_robust_was_not_looking_yet_the_default_of_mean_is_chosen_and_not_the_strictest(outcome):
    # given a finding among the first 20 losses, which robust never judges
    robust = [outcome(sensitivity=k, window_size=size) for size in (50, 100, 200) for k in (5.0, 10.0, 20.0)]
    mean = [outcome("mean", x, size, num_caught=1, is_default=(x, size) == (2.0, 8)) for size in (8, 32) for x in MEANS]
    # when
    best, reason = chosen([*mean, *robust], num_spikes=1)
    # then
    assert best == {"rule": "mean", "multiplier": 2.0, "window_size": 8}
    assert "11 more do equally well here" in reason


def test_a_default_comes_before_another_setting_of_the_better_rule(outcome):
    outcomes = [outcome(sensitivity=7.0, num_caught=1), outcome("mean", 2.0, num_caught=1, is_default=True), outcome()]
    assert chosen(outcomes, num_spikes=1)[0]["rule"] == "mean"


@pytest.mark.parametrize(
    ("tried", "best"), [((1.25, 1.5), 1.5), ((2.5, 3.0, 5.0), 2.5), ((1.25, 2.5, 5.0), 2.5), ((1.5, 5.0), 5.0)]
)
def test_of_equals_without_the_default_the_nearest_that_is_no_stricter_is_chosen(outcome, tried, best):
    outcomes = [outcome("mean", x, num_caught=1) for x in tried] + [outcome("mean", 2.0)]
    assert chosen(outcomes, num_spikes=1)[0]["multiplier"] == best


def test_a_multiplier_stricter_than_the_habit_takes_evidence_too(outcome):
    outcomes = [outcome("mean", x) for x in MEANS]
    assert chosen(outcomes, num_spikes=0, num_finite=500)[0]["multiplier"] == 2.0
    assert chosen(outcomes, num_spikes=0)[0]["multiplier"] == 1.25


def test_a_clean_log_of_many_micro_batches_shows_that_a_strict_setting_does_no_harm(outcome):
    outcomes = [outcome("mean", 1.25), outcome(sensitivity=5.0, num_others=3), outcome(sensitivity=7.0, num_others=2)]

    best, reason = chosen([*outcomes, outcome()], num_spikes=0)

    assert best["k"] == 7.0
    assert "1 in 10,000" in reason


@pytest.mark.parametrize("evidence", [{"unit": "step"}, {"num_finite": 9_999}])
def test_without_enough_micro_batches_nothing_stricter_than_the_default_is_chosen(outcome, evidence):
    outcomes = [outcome(sensitivity=5.0), outcome(), outcome(sensitivity=15.0)]

    assert chosen(outcomes, num_spikes=0, **evidence)[0]["k"] == 10.0
    assert chosen(outcomes[::2], num_spikes=0, **evidence)[0]["k"] == 15.0


def test_nothing_is_chosen_where_every_setting_skips_too_much(outcome):
    outcomes = [outcome(num_caught=3, num_others=21), outcome(sensitivity=20.0, num_caught=3, gave_up=True)]

    best, reason = chosen(outcomes)

    assert best is None
    assert "Every setting skips more than 1 in 1,000 losses" in reason


def test_thin_evidence_is_said():
    def said(**changes):
        return " ".join(on_evidence(**{"num_spikes": 3, "num_finite": 20_000, "unit": "micro", **changes}))

    assert said() == ""
    assert "999 finite losses are little to go by" in said(num_finite=999)
    assert "1 finite loss is little to go by" in said(num_finite=1)
    assert "1 finding with a finite loss is little to choose by" in said(num_spikes=1)
    assert "2 findings with a finite loss are little to choose by" in said(num_spikes=2)
    assert "lower bound" in said(unit="step")
    assert "judge alike" in said(unit="step")
    assert "judge alike" not in said(unit="step", num_spikes=0)


def test_where_no_loss_is_finite_nothing_is_chosen_and_nothing_called_normal(outcome):
    best, reason = chosen([outcome(), outcome("mean", 2.0)], num_spikes=0, num_finite=0)

    assert best is None
    assert reason.startswith("No loss is finite")
