"""Memory, what a step moves, and the largest attention logit."""

import math

import pytest

from trimtab import WatchConfig
from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.watched import Vitals

GB = 1_000_000_000


def found_in(rules, *looks):
    return [finding for look in looks for finding in rules.vitals(look)]


def test_little_memory_of_the_host_is_said_at_launch_and_once():
    rules = HealthRules()

    found = found_in(rules, *(Vitals(step=step, host_available_bytes=4 * GB) for step in (0, 50, 100)))

    assert [(finding.kind, finding.severity, finding.step) for finding in found] == [("host_memory", "warning", 0)]
    assert "4.0 GB" in found[0].text
    assert not found[0].marks_unhealthy


@pytest.mark.parametrize(
    ("available", "severity"), [(7.0, None), (6.0, "warning"), (1.5, "critical")], ids=["enough", "below", "too little"]
)
def test_a_save_of_1_7_gb_is_looked_at_before_it_takes_them(available, severity):
    look = Vitals(step=500, host_available_bytes=int(available * GB), host_needed_bytes=int(1.7 * GB))

    assert [finding.severity for finding in found_in(HealthRules(), look)] == ([severity] if severity else [])


def test_what_becomes_critical_is_said_again():
    rules = HealthRules()

    found = found_in(
        rules,
        Vitals(step=0, host_available_bytes=4 * GB),
        Vitals(step=500, host_available_bytes=GB, host_needed_bytes=int(1.7 * GB)),
    )

    assert [finding.severity for finding in found] == ["warning", "critical"]
    assert [finding.step for finding in rules.standing()] == [500]


def test_memory_is_back_a_fifth_above_the_floor():
    rules = HealthRules()
    found_in(rules, Vitals(step=0, host_available_bytes=4 * GB), Vitals(step=1, host_available_bytes=int(5.5 * GB)))
    assert rules.standing() != ()

    found_in(rules, Vitals(step=2, host_available_bytes=6 * GB))

    assert rules.standing() == ()


def test_device_memory_is_held_against_a_share_or_a_budget():
    look = Vitals(step=50, device_peak_bytes=78 * GB, device_total_bytes=80 * GB)

    assert [finding.kind for finding in HealthRules().vitals(look)] == ["device_memory"]
    assert HealthRules(WatchConfig(device_memory_budget_bytes=79 * GB)).vitals(look) == ()
    alone = Vitals(step=50, device_peak_bytes=78 * GB)
    assert HealthRules().vitals(alone) == ()
    assert len(HealthRules(WatchConfig(device_memory_budget_bytes=70 * GB)).vitals(alone)) == 1


def looks(ratios, *, name="layers.0.weight"):
    return [Vitals(step=50 * (place + 1), update_ratio={name: ratio}) for place, ratio in enumerate(ratios)]


def test_a_weight_that_moves_ten_times_as_far_as_usual_is_named_once():
    found = found_in(HealthRules(), *looks([1e-3, 1.2e-3, 0.9e-3, 1.1e-3, 1e-3, 1.05e-3, 0.02, 0.03]))

    assert [(finding.kind, finding.step) for finding in found] == [("update_ratio", 350)]
    assert "layers.0.weight" in found[0].text
    assert found[0].figures["weights"]["layers.0.weight"]["usual"] == pytest.approx(1.025e-3)


def test_it_is_over_when_the_weights_move_as_usual():
    rules = HealthRules()
    found_in(rules, *looks([1e-3] * 6 + [0.02]))
    assert rules.standing() != ()

    found_in(rules, *looks([1e-3]))

    assert rules.standing() == ()


def test_a_schedule_that_restarts_is_no_jump():
    # given a rate that falls to a hundredth and starts again, and ratios that follow it
    rules, found = HealthRules(), []
    for place, lr in enumerate([1e-3, 6e-4, 2e-4, *[1e-5] * 20, 1e-3, 9e-4]):
        rules.step(ObservedStep(step=place + 1, lr=lr))
        found += rules.vitals(Vitals(step=place + 1, update_ratio={"w": 5 * lr}))

    assert found == []


@pytest.mark.parametrize("ratio", [0.0, math.nan, math.inf, -1.0], ids=["zero", "nan", "inf", "negative"])
def test_what_is_no_ratio_is_left_out(ratio):
    assert found_in(HealthRules(), *looks([1e-3] * 6 + [ratio] * 5 + [1e-3] * 3)) == []


def test_a_weight_that_hardly_moves_may_move_by_any_factor():
    assert found_in(HealthRules(), *looks([1e-6] * 10 + [5e-5])) == []


def test_as_many_weights_as_there_are_hold_no_more_than_a_bounded_state():
    rules = HealthRules()
    for step in range(3):
        rules.vitals(Vitals(step=step, update_ratio={f"w{place}": 1e-3 for place in range(2000)}))

    assert len(rules.state_dict()["parts"]["update_ratio"]["windows"]) == 256


def logits(*values):
    return [Vitals(step=50 * (place + 1), attention_logit=value) for place, value in enumerate(values)]


def test_an_attention_logit_above_100_that_grows_is_warned_of_once():
    found = found_in(HealthRules(), *logits(40.0, 60.0, 85.0, 120.0, 180.0, 400.0))

    assert [(finding.kind, finding.step) for finding in found] == [("attention_logit", 200)]


@pytest.mark.parametrize(
    "values",
    [(110.0, 112.0, 108.0, 111.0, 113.0), (20.0, 40.0, 80.0, 99.0), (500.0,), (math.inf, math.nan, 50.0)],
    ids=["high and level", "growing below", "one look", "not finite"],
)
def test_other_attention_logits_are_not(values):
    assert found_in(HealthRules(), *logits(*values)) == []


def test_a_look_that_knows_nothing_says_nothing():
    assert found_in(HealthRules(), Vitals(step=0)) == []
