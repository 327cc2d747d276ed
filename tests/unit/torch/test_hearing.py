"""How a guard hears late of what a device decided: each decision once, in order, also those that nobody counted."""

import logging
import math
import weakref

import pytest
import torch

from trimtab.errors import GuardLockupError
from trimtab.guard import GuardConfig, LossGuard, PerTokenLossGuard
from trimtab.guard.words import GuardWords
from trimtab.torch.decided import SIZE, Decided
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.hearing import Hearing
from trimtab.torch.late import LateFigures
from trimtab.values import VERDICT_REASONS

CONFIG = GuardConfig(multiplier=2.0, max_consecutive_skips=3)
LOSSES = [1.0, 1.25, 0.75, 9.0, 1.0, math.nan, 1.5, 9.0, 9.0, 9.0, 9.0, 8.0, 1.0]


class Device:
    """A rule that decides, and the guard that hears of it; a copy arrives when it is polled for."""

    def __init__(self, config: GuardConfig = CONFIG) -> None:
        self.guard = LossGuard.from_config(config)
        self.rule = DeviceRule(config, device="cpu")
        self.decided = Decided(device=torch.device("cpu"))
        self.hearing = Hearing(
            weakref.ref(self.guard),
            rule=self.rule,
            decided=self.decided,
            late=LateFigures(),
            words=GuardWords(rank=0),
        )

    def decide(self, losses: list[float | None], *, is_counted: bool = True, reason: str | None = None) -> None:
        """One micro-batch of one token for each loss, without a token for None."""
        for loss in losses:
            if is_counted:
                self.hearing.count()
            if loss is None:
                shown = [0.0, 0.0, 0.0]
            else:
                shown = [0.0 if math.isnan(loss) else loss, 1.0, float(math.isnan(loss))]
            figures = torch.tensor(shown, dtype=torch.float64)
            ruling = self.rule.decide(*figures)
            told = ruling.reason if reason is None else torch.tensor(VERDICT_REASONS.index(reason))
            self.decided.add(figures, keep=ruling.keep, reason=told)


def state_after(losses: list[float], config: GuardConfig = CONFIG) -> dict[str, object]:
    guard = LossGuard.from_config(config)
    for loss in losses:
        guard.check(loss)
    return guard.state_dict()


@pytest.mark.parametrize("num_a_step", [1, 3, 5])
def test_after_each_copy_the_guard_is_where_it_had_decided_itself(num_a_step: int) -> None:
    device = Device()

    for begin in range(0, len(LOSSES), num_a_step):
        device.decide(LOSSES[begin : begin + num_a_step])
        device.hearing.send_for()
        device.hearing.poll()

        assert device.guard.state_dict() == state_after(LOSSES[: begin + num_a_step])


def test_decisions_that_nobody_counted_are_heard_of_all_the_same() -> None:
    # given copies of one decision each, all under way while the device goes on
    device = Device()
    for begin in range(0, 12, 4):
        device.decide(LOSSES[begin : begin + 4], is_counted=False)
        device.hearing.send_for()

    # when
    device.hearing.poll()

    # then
    assert device.guard.state_dict() == state_after(LOSSES[:12])
    device.decide(LOSSES[12:])
    device.hearing.send_for()
    device.hearing.poll()
    assert device.guard.state_dict() == state_after(LOSSES)


def test_more_calls_between_two_steps_than_the_device_holds_are_all_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    device, losses = Device(), [1.0 + 0.125 * (place % 5) for place in range(2 * SIZE + 300)]

    device.decide(losses)
    device.hearing.settle()

    assert device.guard.state_dict() == state_after(losses)
    assert caplog.messages == []


def test_what_was_overwritten_is_counted_and_its_history_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    device, losses = Device(), [1.0, 1.0, 1.0, 9.0] * 300
    device.decide(losses[:2])
    device.hearing.settle()

    device.decide(losses[2:], is_counted=False)
    device.hearing.settle()

    expected = LossGuard.from_config(CONFIG)
    expected.load_state_dict(state_after(losses))
    assert device.guard.history == expected.history
    assert (device.guard.num_judged, device.guard.num_skipped) == (1200, expected.num_skipped)
    assert len([line for line in caplog.messages if "174 verdicts are counted" in line]) == 1
    # then what follows is heard of as ever
    device.decide([1.0, 9.0])
    device.hearing.settle()
    assert (device.guard.num_judged, device.guard.num_skipped) == (1202, expected.num_skipped + 1)


MIXED = [1.0, 1.0, None, 1.0, 9.0, None, math.nan, 1.0]
"""Of eight six are judged, and of these two skipped."""


@pytest.mark.parametrize("heard", [0, 4, 8, 16], ids=lambda heard: f"{heard} heard")
def test_what_is_counted_over_several_overflows_are_losses_and_skips_and_not_those_without_tokens(heard: int) -> None:
    # given
    device, guard = Device(), PerTokenLossGuard.from_config(CONFIG)
    of_both = MIXED * 2
    # when: what is heard of as ever, more than the device holds twice over, and again what is heard of
    for losses, is_counted in [
        (of_both[:heard], True),
        (of_both[heard:] + MIXED * 200, False),
        (MIXED * 150, False),
        (MIXED, True),
    ]:
        device.decide(losses, is_counted=is_counted)
        device.hearing.settle()
    # then
    for loss in of_both + MIXED * 351:
        guard.check(0.0 if loss is None else loss, 0 if loss is None else 1)
    assert device.guard.history == guard.history
    assert (guard.num_judged, guard.num_skipped) == (353 * 6, 353 * 2)
    assert (device.guard.num_judged, device.guard.num_skipped) == (353 * 6, 353 * 2)


def test_settling_leaves_nothing_to_be_heard_twice() -> None:
    device = Device()
    device.decide(LOSSES[:4])
    device.hearing.send_for()
    device.decide(LOSSES[4:6])

    device.hearing.settle()
    device.hearing.settle()
    device.decide(LOSSES[6:9])
    device.hearing.send_for()
    device.hearing.poll()

    assert device.guard.state_dict() == state_after(LOSSES[:9])


def test_after_a_move_the_counts_go_on_and_each_decision_is_heard_of_once() -> None:
    # given: decisions that were heard of, and a device that takes over
    device = Device()
    device.decide(LOSSES[:5])
    device.hearing.settle()
    device.rule = DeviceRule(CONFIG, device="cpu")
    device.rule.load(device.guard.history)
    device.decided = Decided(device=torch.device("cpu"), counts=device.decided.counts)
    device.hearing.go_on(rule=device.rule, decided=device.decided)

    # when
    device.decide(LOSSES[5:])
    device.hearing.send_for()
    device.hearing.poll()

    # then
    assert device.guard.state_dict() == state_after(LOSSES)
    assert int(device.decided.counts[0]) == len(LOSSES)


def test_a_lock_up_is_raised_once_and_all_that_came_with_it_is_heard() -> None:
    device = Device(GuardConfig(multiplier=2.0, max_consecutive_skips=2, on_lockup="raise"))
    device.decide([1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 1.0])
    device.hearing.send_for()

    with pytest.raises(GuardLockupError, match="2 losses in a row were skipped"):
        device.hearing.poll()
    device.hearing.poll()

    # The two that raised are not remembered.
    assert (device.guard.num_judged, device.guard.num_skipped) == (6, 2)
    assert device.guard.history == device.rule.history()


def test_a_device_that_decides_otherwise_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    device = Device()
    device.decide([1.0, 1.0, 1.0])
    device.decide([1.0, 1.0], reason="spike")
    device.hearing.send_for()

    device.hearing.poll()

    (warning,) = [line for line in caplog.messages if "device decided" in line]
    assert "decided spike about micro-batch 4 of guard(loss), where the host says normal (loss 1)" in warning
    assert "guard.check(...) decides on the host" in warning


def test_a_step_brings_no_more_than_was_decided_since_the_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "trimtab")
    device = Device()
    asked: list[int] = []
    newest = device.decided.newest
    device.decided.newest = lambda num: asked.append(num) or newest(num)  # type: ignore[method-assign,func-returns-value]

    for num in (1, 4, 2):
        device.decide([1.0] * num)
        device.hearing.send_for()
        device.hearing.poll()
    device.decide([1.0] * 3, is_counted=False)
    device.hearing.send_for()
    device.hearing.poll()

    assert asked == [1, 4, 2, 1, SIZE]
