"""A loss of 0.0 that is none, and the pace of a run."""

import math

import pytest

from trimtab.rules.health import ObservedStep


@pytest.mark.parametrize("norm", [math.nan, math.inf], ids=["nan", "inf"])
def test_a_loss_of_zero_with_a_norm_that_is_none_is_critical_and_said_once(fed, norm):
    fed.series(loss=[2.0, 1.9] + [0.0] * 10, grad_norm=[1.0, 1.0] + [norm] * 10)

    assert fed.said == [("zero_loss", "critical", 3)]
    assert fed.found[0].marks_unhealthy
    assert "no improvement" in fed.found[0].text
    assert "fully masked attention row" in fed.found[0].text
    assert fed.rules.unhealthy_because() == (f"zero_loss since step 3, last seen at step 12: {fed.found[0].text}",)


@pytest.mark.parametrize("norm", [None, 0.0, 1e-8], ids=["unknown", "zero", "tiny"])
def test_a_loss_of_zero_alone_is_what_a_model_that_knows_its_rows_has(fed, norm):
    assert fed.series(loss=[0.0] * 5, grad_norm=[norm] * 5).found == []


def test_a_window_without_tokens_has_no_loss(fed):
    assert fed.steps([ObservedStep(step=1, loss=0.0, grad_norm=math.nan, reason="no_tokens")]).found == []


def test_it_is_over_after_five_steps_with_a_loss_and_a_norm(fed):
    fed.series(loss=[0.0, 2.0, 2.0, 2.0, 2.0], grad_norm=[math.nan, 1.0, 1.0, 1.0, 1.0])
    assert fed.rules.unhealthy_because() != ()

    fed.series(first=6, loss=[2.0], grad_norm=[1.0])

    assert fed.rules.unhealthy_because() == ()


def paced(paces, *, num_tokens=4096):
    return {"num_tokens": [num_tokens] * len(paces), "wall_s": [num_tokens / pace for pace in paces]}


def test_a_pace_that_falls_from_1322_to_about_200_tokens_a_second_is_warned_of_once(fed):
    fed.series(**paced([1322.0, 1318.0, 1330.0, 1325.0] * 50 + [227.0, 170.0, 201.0] * 20))

    assert fed.said == [("throughput", "warning", 210)]
    assert fed.found[0].figures["usual"] == pytest.approx(1323.5)
    assert len(fed.rules.standing()) == 1


def test_it_is_over_when_the_pace_is_back(fed):
    fed.series(**paced([1322.0] * 50 + [200.0] * 400 + [1300.0] * 10))

    assert len(fed.found) == 1
    assert fed.rules.standing() == ()


def test_pauses_for_evaluations_and_saves_are_no_alarm(fed):
    # given one step of fifty that takes a minute longer, and three in a row that save, evaluate and load a shard
    seconds = [0.5 + 60.0 * (step % 50 == 49) for step in range(1000)]
    seconds[500:503] = [60.0, 45.0, 30.0]

    assert fed.series(num_tokens=[4096] * 1000, wall_s=seconds).found == []


def test_slow_first_steps_are_no_alarm_and_hide_none(fed):
    fed.series(**paced([10.0, 15.0, 400.0] + [1322.0] * 60 + [200.0] * 12))

    assert fed.said == [("throughput", "warning", 73)]


def test_batches_with_few_supervised_tokens_are_not_slow(fed):
    # given answers of 20 tokens in prompts of 4,000, a hundred steps long
    tokens = [4000] * 100 + [20] * 100

    assert fed.series(num_tokens=tokens, wall_s=[0.5] * 200).found == []


def test_steps_of_milliseconds_are_not_slow_before_it_costs_something(fed):
    # given a machine that does something else for a second, and later for good
    fed.series(num_tokens=[16] * 100, wall_s=[0.001] * 50 + [0.1] * 10 + [0.001] * 40)
    assert fed.found == []

    fed.series(first=101, num_tokens=[16] * 300, wall_s=[0.1] * 300)

    assert fed.said == [("throughput", "warning", 300)]


def test_twice_as_slow_is_not_a_fraction(fed):
    assert fed.series(**paced([1322.0] * 100 + [600.0] * 100)).found == []


@pytest.mark.parametrize("wall_s", [math.nan, 0.0, -1.0, math.inf], ids=["nan", "zero", "negative", "inf"])
def test_a_step_whose_time_is_not_known_is_left_out(fed, wall_s):
    assert fed.series(num_tokens=[100] * 50, wall_s=[wall_s] * 50).found == []
    assert fed.rules.figures()["tokens_per_s"] is None


def test_a_pace_that_is_told_without_seconds_counts_by_steps_alone(fed):
    fed.series(tokens_per_s=[1e6] * 50 + [2e5] * 12)

    assert fed.said == [("throughput", "warning", 60)]
    assert "10 steps in a row" in fed.found[0].text
    assert " s)" not in fed.found[0].text


def test_a_pace_that_is_told_beside_tokens_has_the_seconds_that_these_took(fed):
    # given 12 steps of 20 ms: a quarter of a second is nothing
    fed.series(tokens_per_s=[1e6] * 50 + [2e5] * 12, num_tokens=[4096] * 62)
    assert fed.found == []

    fed.series(first=63, tokens_per_s=[2e5] * 1_000, num_tokens=[4096] * 1_000)
    assert [finding.kind for finding in fed.found] == ["throughput"]
    assert "(20 s)" in fed.found[0].text
