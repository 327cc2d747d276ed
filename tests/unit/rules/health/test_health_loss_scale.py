"""The loss scale: which halvings are the search of a scaler's beginning, and which do not end."""

import pytest

from trimtab import WatchConfig
from trimtab.rules.health import HealthRules, ObservedStep


def scales(*parts: tuple[float, int]) -> list[float]:
    return [scale for scale, num_steps in parts for _ in range(num_steps)]


def test_the_halvings_with_which_a_scaler_begins_are_no_alarm(fed):
    # six skipped steps, as two published logs have them
    fed.series(
        loss_scale=[65536.0, 32768.0, 16384.0, 8192.0, 4096.0, 2048.0, 2048.0, 2048.0],
        reason=["scaler_overflow"] * 6 + ["stepped"] * 2,
    )

    assert fed.found == []


def test_a_scale_that_goes_down_to_one_is_warned_of_once_at_its_third_halving(fed):
    fed.series(loss_scale=[64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0])

    assert fed.said == [("loss_scale_collapse", "warning", 4)]
    assert fed.found[0].figures == {"loss_scale": 8.0, "from": 64.0, "num_halvings": 3}
    assert len(fed.rules.standing()) == 1


def test_a_warm_up_that_does_not_end_is_warned_of_at_the_floor(fed):
    fed.series(loss_scale=[2.0**power for power in range(16, -1, -1)])

    assert [finding.figures["loss_scale"] for finding in fed.found] == [16.0]


def test_a_scale_that_has_held_and_then_keeps_halving_is_warned_of(fed):
    fed.series(loss_scale=scales((65536, 1), (2048, 300), (1024, 10), (512, 10), (256, 10), (128, 10)))

    # the first of 256 is step 322
    assert [(finding.step, finding.figures["loss_scale"]) for finding in fed.found] == [(322, 256.0)]


@pytest.mark.parametrize("interval", [1000, 2000])
def test_doubling_and_halving_in_turn_is_how_scalers_live(fed, interval):
    fed.series(loss_scale=scales(*[(65536, interval), (131072, 3)] * 10))

    assert fed.found == []


def test_two_halvings_close_to_each_other_are_outliers_in_the_data(fed):
    fed.series(loss_scale=scales((32768, 2000), (16384, 5), (8192, 2000), (16384, 2000), (8192, 5), (4096, 2000)))

    assert fed.found == []


def test_halvings_far_apart_and_far_from_the_floor_are_no_alarm(fed):
    fed.series(loss_scale=scales((65536, 600), (32768, 600), (16384, 600), (8192, 600), (4096, 600)))

    assert fed.found == []


def test_a_scaler_that_starts_anew_after_a_resume_searches_again(fed):
    # given a run whose scaler has settled, and whose state was not in the checkpoint
    fed.series(loss_scale=scales((2048, 500)) + [65536.0, 32768.0, 16384.0, 8192.0, 4096.0, 2048.0] + [2048.0] * 50)

    assert fed.found == []


def test_a_log_of_every_tenth_step_tells_of_several_halvings_at_once(fed):
    fed.steps(ObservedStep(step=10 * place, loss_scale=scale) for place, scale in enumerate([512.0] * 20 + [64.0]))

    assert [finding.figures["num_halvings"] for finding in fed.found] == [3]


def test_it_is_over_after_two_doublings_and_said_again_when_it_comes_again(fed):
    fed.series(loss_scale=scales((1024, 200), (512, 1), (256, 1), (128, 1), (256, 500)))
    assert len(fed.rules.standing()) == 1
    fed.series(first=1000, loss_scale=scales((512, 500)))
    assert fed.rules.standing() == ()

    fed.series(first=1500, loss_scale=[256.0, 128.0, 64.0])

    assert len(fed.found) == 2


@pytest.mark.parametrize("apart", [35, 60, 120, 400, 550, 950])
def test_a_scale_that_keeps_halving_is_warned_of_however_far_apart(fed, apart):
    fed.series(loss_scale=scales(*[(2.0**power, apart) for power in range(16, 4, -1)]))

    assert [finding.kind for finding in fed.found] == ["loss_scale_collapse"]


def test_a_scale_that_held_for_a_moment_and_then_keeps_halving_is_warned_of(fed):
    fed.series(loss_scale=[65536.0, 32768.0, 16384.0, 8192.0, 4096.0] + [2048.0] * 40 + [1024.0, 512.0, 256.0, 128.0])

    assert [finding.figures["loss_scale"] for finding in fed.found] == [256.0]


@pytest.mark.parametrize("steps_each", [1, 2, 5])
def test_a_search_from_the_highest_scale_is_no_alarm(fed, steps_each):
    # given 2^32, as DeepSpeed and Megatron begin, and at each scale some steps
    fed.series(loss_scale=scales(*[(2.0**power, steps_each) for power in range(32, 15, -1)], (2.0**15, 900)))

    assert fed.found == []


def test_a_scale_that_holds_for_a_thousand_steps_between_halvings_is_no_alarm(fed):
    fed.series(loss_scale=scales(*[(2.0**power, 1_001) for power in range(16, 8, -1)]))

    assert fed.found == []


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")], ids=["zero", "negative", "nan", "inf"])
def test_what_is_no_scale_is_left_out(fed, scale):
    assert fed.series(loss_scale=[64.0, scale, 64.0, scale, 32.0]).found == []


def test_its_settings_decide():
    rules = HealthRules(WatchConfig(loss_scale_floor=1.0, loss_scale_halvings=6))
    found = [rules.step(ObservedStep(step=step, loss_scale=2.0**-step)) for step in range(-6, 1)]
    assert [len(one) for one in found] == [0, 0, 0, 0, 0, 0, 1]
