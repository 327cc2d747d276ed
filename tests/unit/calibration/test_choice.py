"""Which setting is chosen, and what is said of the evidence."""

import pytest

from trimtab.calibration.choice import choose, on_evidence


def chosen(outcomes, *, num_spikes=3, num_losses=20_000, unit="micro"):
    best, reason = choose(outcomes, num_spikes=num_spikes, num_losses=num_losses, unit=unit)
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


def test_a_clean_log_of_many_micro_batches_shows_that_a_strict_setting_does_no_harm(outcome):
    outcomes = [outcome("mean", 1.25), outcome(sensitivity=5.0, num_others=3), outcome(sensitivity=7.0, num_others=2)]

    best, reason = chosen([*outcomes, outcome()], num_spikes=0)

    assert best["k"] == 7.0
    assert "1 in 10,000" in reason


@pytest.mark.parametrize("evidence", [{"unit": "step"}, {"num_losses": 9_999}])
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
        return " ".join(on_evidence(**{"num_spikes": 3, "num_losses": 20_000, "unit": "micro", **changes}))

    assert said() == ""
    assert "999 losses are few" in said(num_losses=999)
    assert "1 finding is little to choose by" in said(num_spikes=1)
    assert "2 findings are little to choose by" in said(num_spikes=2)
    assert "lower bound" in said(unit="step")
    assert "judge alike" in said(unit="step")
    assert "judge alike" not in said(unit="step", num_spikes=0)
