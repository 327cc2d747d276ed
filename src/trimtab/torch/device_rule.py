"""The rule of a guard as tensor code: verdicts that nobody waits for.

Enter: the figures of a micro-batch, 0-d float64 on the device, alike on every rank. Leaves: a `Ruling`, and the
history has moved on. Invariants: verdict for verdict, baseline for baseline, this decides as the host guard does
(`trimtab.guard`), whose arithmetic is repeated here operation by operation; and the state is changed in place only, so
that compiled and captured graphs hold it.

The state has one row a purpose, W values wide, newest value first:

    0  window   the kept losses that the rule looks back at
    1  streak   finite losses that were skipped in a row
    2  nothing  never changes

A lock-up ends in that the window takes over the streak, a kept loss in that the streak takes over nothing: both times
a row takes over the one below it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from trimtab.guard import GuardConfig
from trimtab.guard.history import History
from trimtab.rules.scalar import MAX_WHOLE
from trimtab.torch.device_comparisons import COMPARISONS


class Ruling(NamedTuple):
    """What was decided about a micro-batch, as 0-d tensors on the device.

    Attributes:
        keep: bool, whether it takes part in the update.
        reason: int64, index into `trimtab.values.VERDICT_REASONS`.
        loss: float64, the judged mean loss, a float32 value; 0 without tokens.
        baseline: float64, what it was compared with; NaN where there was no comparison.
        threshold: float64, what it had to exceed to be a spike; NaN likewise.
    """

    keep: torch.Tensor
    reason: torch.Tensor
    loss: torch.Tensor
    baseline: torch.Tensor
    threshold: torch.Tensor


class DeviceRule:
    """Judges micro-batches on a device and remembers them there.

    Under `on_lockup="raise"` it goes on skipping: only the host can raise, when it hears of it.

    Args:
        config: Settings of a guard that is on.
        device: Where the figures are; it must have float64.
    """

    def __init__(self, config: GuardConfig, *, device: torch.device | str) -> None:
        rule = config.build_rule()
        assert rule is not None, "a guard that is off decides nothing"
        self._size = rule.window_size
        self._min_history = int(rule.settings["min_history"])
        self._compare = COMPARISONS[config.rule](rule, device=device)
        allowed = config.num_skips_allowed if config.on_lockup == "rebaseline" else None
        self._max_skips = MAX_WHOLE if allowed is None else allowed

        self._history = torch.full((3, self._size), self._compare.padding, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)
        # Constants that a call would otherwise bring over from the host.
        self._nan = torch.full((), math.nan, dtype=torch.float32, device=device)
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._true = torch.ones((), dtype=torch.bool, device=device)

    @torch.no_grad()
    def decide(self, loss_sum: torch.Tensor, num_tokens: torch.Tensor, num_nonfinite: torch.Tensor) -> Ruling:
        """Judges one micro-batch and remembers it; never waits for the device.

        Args:
            loss_sum: 0-d float64, sum of the losses of its supervised tokens over all ranks.
            num_tokens: 0-d float64, how many there are; exact up to 2^53.
            num_nonfinite: 0-d float64, on how many ranks something was not finite that `loss_sum` does not show.

        Returns:
            The verdict, the same on every rank that passes the same figures.
        """
        has_tokens = num_tokens > 0
        # No conversion may follow on `float()` at once: of two in a row inductor's pass `pointless_convert` drops the
        # first, here the rounding that is part of the rule (up to some torch after 2.6; 2.13 spares a narrower one).
        loss = torch.where(num_nonfinite > 0, self._nan, (loss_sum / num_tokens).float()).double()
        is_finite = loss.abs() < math.inf  # two kernels, `isfinite` is four; False without tokens, a division by 0
        is_comparable = is_finite & (self._counts[0] >= self._min_history)
        found = self._compare(loss, self._history[0], self._counts[0], is_comparable)

        # Of truths, a > b is "a and not b": one kernel.
        is_skipped = found.is_spike & (self._counts[1] < self._max_skips)
        is_rebaselined = found.is_spike > is_skipped
        is_remembered = is_finite > is_skipped
        # The reasons stand in the order in which a guard asks. Each question below is asked only where the one before
        # it was answered yes, so that the yeses count up to the reason; "normal" lies two beyond "rebaselined".
        answers = [self._true, has_tokens, is_finite, is_comparable, found.is_usable]
        reason = torch.stack([*answers, is_skipped, found.is_normal, found.is_normal]).sum()
        self._move_on(loss, is_rebaselined, is_remembered, is_skipped)
        return Ruling(
            keep=is_remembered >= has_tokens,  # without tokens nothing is remembered, and yet it is kept
            reason=reason,
            loss=torch.where(has_tokens, loss, self._zero),
            baseline=found.baseline,
            threshold=found.threshold,
        )

    def load(self, history: History) -> None:
        """Goes on from the history of a guard with the same settings; waits for the device.

        Args:
            history: What the host guard that decides alike remembers.
        """
        rows = [
            [*reversed(losses), *[self._compare.padding] * (self._size - len(losses))]
            for losses in (history.window, history.streak)
        ]
        self._history[:2].copy_(torch.tensor(rows, dtype=torch.float64))
        self._counts[:2].copy_(torch.tensor([len(history.window), history.num_finite]))

    def history(self) -> History:
        """What the next loss is compared with; waits for the device."""
        num_values, num_finite, _ = self._counts.tolist()
        window, streak, _ = self._history.tolist()
        return History(window[:num_values][::-1], streak[:num_finite][::-1], num_finite)

    def reset(self) -> None:
        """Forgets every loss: the next micro-batches are warm-up again."""
        self._history.fill_(self._compare.padding)
        self._counts.zero_()

    def _move_on(
        self,
        loss: torch.Tensor,
        is_rebaselined: torch.Tensor,
        is_remembered: torch.Tensor,
        is_skipped: torch.Tensor,
    ) -> None:
        takes_over = torch.stack([is_rebaselined, is_remembered])
        grows = torch.stack([is_remembered, is_skipped])
        history = torch.where(takes_over[:, None], self._history[1:], self._history[:2])
        grown = torch.cat([loss.expand(2, 1), history[:, :-1]], dim=1)
        self._history[:2].copy_(torch.where(grows[:, None], grown, history))
        self._counts[:2].copy_(torch.where(takes_over, self._counts[1:], self._counts[:2]) + grows)
