"""A replay is the live guard: the same verdicts, however it hurries past what is normal."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.calibration import replay as replaying
from trimtab.calibration.replay import replay
from trimtab.calibration.settings import SETTINGS
from trimtab.guard import GuardConfig, LossGuard


def live(losses, config):
    """Places that a guard skips when it is asked about every loss in turn, and how often it re-baselines."""
    guard = LossGuard.from_config(config, quiet=True)
    verdicts = [guard.check(loss) for loss in losses]
    skipped = [place for place, verdict in enumerate(verdicts) if not verdict.keep]
    return skipped, sum(verdict.reason == "rebaselined" for verdict in verdicts)


@st.composite
def runs(draw):
    """Losses with noise, spikes around every threshold, level shifts, what is not finite, and of any sign."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(1, 900))
    level = draw(st.sampled_from([0.0, 1e-4, 0.5, 2.5, -3.0, 1e4]))
    noise = draw(st.sampled_from([0.0, 1e-5, 0.01, 0.3])) * max(abs(level), 1e-3)
    losses = level + noise * random.standard_normal(size)
    for _ in range(draw(st.integers(0, 2))):
        losses[random.integers(0, size) :] *= draw(st.sampled_from([0.3, 1.4, 4.0]))
    at = random.integers(0, size, draw(st.integers(0, 25)))
    losses[at] += (max(0.02 * abs(level), 5e-5, noise)) * random.uniform(2, 40, at.size)
    at = random.integers(0, size, draw(st.integers(0, 6)))
    losses[at] = random.choice([math.nan, math.inf, -math.inf, 1e39, 3e38], at.size)
    return np.round(losses, draw(st.sampled_from([1, 4, 9])))


@pytest.mark.parametrize("config", SETTINGS[1::4], ids=str)
@given(losses=runs())
def test_every_verdict_is_that_of_the_guard_asked_about_each_loss(config, losses):
    skips = replay(losses, config)

    assert (skips.place.tolist(), skips.num_rebaselined) == live(losses.tolist(), config)
    assert skips.num_judged == losses.size


@pytest.mark.parametrize(
    ("config", "num_skipped"),
    [
        (GuardConfig(multiplier=2.0), 125),
        (GuardConfig(multiplier=1.5), 1158),
        (GuardConfig(rule="robust"), 3),
        (GuardConfig(rule="robust", window_size=20), None),
        (GuardConfig(rule="robust", k=60.0), None),
        (GuardConfig(multiplier=1.5, window_size=100, max_consecutive_skips="never"), None),
    ],
    ids=str,
)
def test_a_whole_fine_tune_is_replayed_as_the_guard_would_have_judged_it(curve, config, num_skipped):
    _, losses = curve("hf_sft_24k_noisy")

    skips = replay(losses, config)

    assert (skips.place.tolist(), skips.num_rebaselined) == live(losses.tolist(), config)
    if num_skipped is not None:
        assert skips.place.size == num_skipped


@pytest.mark.parametrize(
    ("config", "num_skipped"), [(GuardConfig(multiplier=3.0), 8), (GuardConfig(rule="robust"), 20)], ids=str
)
def test_a_level_shift_is_one_lock_up(config, num_skipped):
    skips = replay(np.array([1.0] * 400 + [4.0] * 1_000), config)

    assert skips.place.tolist() == list(range(400, 400 + num_skipped))
    assert skips.num_rebaselined == 1


def test_without_a_way_out_a_level_shift_is_skipped_for_ever():
    config = GuardConfig(multiplier=3.0, max_consecutive_skips="never")

    assert replay(np.array([1.0] * 400 + [4.0] * 1_000), config).place.size == 1_000


def test_the_published_example_of_the_classic_rule():
    losses = np.array([2.0] * 8 + [20.0] * 4 + [2.0] * 4 + [6.0])

    assert replay(losses, GuardConfig(multiplier=2.0)).place.tolist() == [8, 9, 10, 11, 16]


def test_what_is_not_finite_is_told_apart():
    losses = np.array([1.0] * 30 + [math.nan, 9.0, math.inf, 1e39] + [1.0] * 30)

    skips = replay(losses, GuardConfig(rule="robust"))

    assert skips.place.tolist() == [30, 31, 32, 33]
    assert skips.nonfinite.tolist() == [True, False, True, True]


def test_a_replay_says_nothing(caplog):
    # given: skips in a row, a lock-up, more than 1 % skipped, a mean below zero, NaNs in a row
    losses = np.array([1.0] * 400 + [9.0] * 100 + [-3.0] * 50 + [math.nan] * 30)

    for config in SETTINGS:
        replay(losses, config)

    assert caplog.records == []


def test_few_losses_of_a_quiet_run_are_judged_one_by_one(monkeypatch):
    # given
    asked = []
    check = LossGuard.check
    monkeypatch.setattr(LossGuard, "check", lambda guard, loss: asked.append(loss) or check(guard, loss))
    losses = 2.0 + 0.1 * np.random.default_rng(0).standard_normal(20_000)
    losses[[5_000, 15_000]] = 9.0

    # when
    skips = replay(losses, GuardConfig(rule="robust"))

    # then: the first window, both spikes, and a window behind each
    assert skips.place.tolist() == [5_000, 15_000]
    assert len(asked) < 400


def test_a_setting_that_skips_far_too_much_is_given_up(monkeypatch):
    monkeypatch.setattr(replaying, "HOPELESS_FROM", 500)
    losses = np.tile([1.0] * 19 + [1.9], 100)

    given_up = replay(losses, GuardConfig(multiplier=1.5))
    carried_through = replay(losses, GuardConfig(multiplier=2.0))

    assert (given_up.num_judged, given_up.place.size) == (500, 25)
    assert (carried_through.num_judged, carried_through.place.size) == (2_000, 0)
