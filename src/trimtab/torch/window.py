"""The sums of one accumulation window, kept on the device, and the two ways in which they become a mean.

`normalize="micro"`: every micro-batch counts alike, whatever its tokens. `normalize="window"`: every supervised token
of the window counts alike. Under `skipped_tokens="removed"` what the guard left out is taken out of the divisor too.

What a window holds is known only when it is complete, and backward is called before: so a loss is divided by what is
known, and `WindowMean.factor` puts the gradients right before they are clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from trimtab.errors import UsageError
from trimtab.run import WindowCounts
from trimtab.torch.losses import RowLosses


def _no_tokens() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


@dataclass(slots=True)
class WindowTotals:
    """What a window holds so far; 0-d tensors, on the device as soon as a micro-batch was added.

    Attributes:
        loss: Sum over kept micro-batches of what the window's loss is made of.
        num_tokens: Supervised tokens, those of skipped micro-batches among them.
        num_kept_tokens: Supervised tokens that take part in the update.
    """

    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    num_tokens: torch.Tensor = field(default_factory=_no_tokens)
    num_kept_tokens: torch.Tensor = field(default_factory=_no_tokens)

    def add(self, loss: torch.Tensor, num_tokens: torch.Tensor) -> None:
        """Adds a micro-batch that was kept; `loss` is detached here. A skipped one adds to `num_tokens` alone."""
        self.loss = self.loss + loss.detach()
        self.num_tokens = self.num_tokens + num_tokens
        self.num_kept_tokens = self.num_kept_tokens + num_tokens


def removed_factor(counts: WindowCounts, *, by_token: bool) -> float:
    """What takes skipped micro-batches out of a divisor that a host has used already.

    Args:
        counts: The window; something in it was kept.
        by_token: Whether the host divided by the tokens of the window, and not by its micro-batches.
    """
    if by_token:
        return counts.num_tokens / counts.num_kept_tokens
    return counts.num_micros / counts.num_kept_micros


class WindowMean:
    """Turns the loss sums of micro-batches into losses for backward, and their gradients into those of a mean.

    Attributes:
        totals: The window that is being filled.
        divisor: What loss sums are divided by under "window"; any fixed number does, so the first micro-batch sets it.
    """

    def __init__(self, *, normalize: Literal["micro", "window"], accumulation: int, removed: bool) -> None:
        """Begins with an empty window.

        Args:
            normalize: What counts alike: micro-batches, or tokens.
            accumulation: Micro-batches in a full window.
            removed: Whether skipped tokens leave the divisor.
        """
        self.totals = WindowTotals()
        self.divisor: float | None = None
        self._by_token = normalize == "window"
        self._accumulation = accumulation
        self._removed = removed
        self._announced_tokens: int | None = None
        self._aux_divisor = accumulation

    def begin(self) -> None:
        """Forgets the window that was stepped."""
        self.totals = WindowTotals()
        self._announced_tokens, self._aux_divisor = None, self._accumulation

    def announce(self, *, num_tokens: int, num_micros: int | None) -> None:
        """Tells what the window will hold, before its first micro-batch."""
        self._announced_tokens = num_tokens
        self._aux_divisor = num_micros if num_micros is not None else self._accumulation

    def check_aux(self, aux: object) -> None:
        """Refuses auxiliary terms that are no 0-d tensor, or that have no scale yet, with `UsageError`."""
        if aux is None:
            return
        if not isinstance(aux, torch.Tensor) or aux.dim() != 0:
            found = f"shape {tuple(aux.shape)}" if isinstance(aux, torch.Tensor) else type(aux).__name__
            raise UsageError(f"aux must be a 0-d tensor, found {found}: sum its terms first.")
        if self._by_token and self._announced_tokens is None:
            raise UsageError(
                'aux under normalize="window" has no scale until the window\'s tokens are known: call '
                "run.begin_window(num_tokens) before the first micro_batch of the window."
            )

    def skip(self, micro_batch: RowLosses) -> None:
        """Counts a micro-batch that takes no part in the update."""
        self.totals.num_tokens = self.totals.num_tokens + micro_batch.num_tokens

    def keep(self, micro_batch: RowLosses, aux: torch.Tensor | None) -> torch.Tensor:
        """Counts a micro-batch that takes part; gives its loss for backward, 0-d."""
        if self._by_token:
            self.totals.add(micro_batch.loss_sum, micro_batch.num_tokens)
            loss = micro_batch.loss_sum / self._token_divisor(micro_batch)
        else:
            mean = micro_batch.loss_sum / micro_batch.num_tokens.clamp(min=1)
            self.totals.add(mean, micro_batch.num_tokens)
            loss = mean / self._accumulation
        return loss if aux is None else loss + aux / self._aux_divisor

    def factor(self, counts: WindowCounts) -> float | torch.Tensor | None:
        """What the window's gradients must be multiplied by; None for nothing at all, 0-d tensor under "window"."""
        if not self._by_token:
            factor = self._accumulation / self._num_micros(counts)
            return None if factor == 1.0 else factor
        divisor = self._announced_tokens if self._announced_tokens is not None else self.divisor
        assert divisor is not None, "a micro-batch was kept, so the divisor is known"
        tokens = self._tokens()
        return torch.where(tokens > 0, divisor / tokens.clamp(min=1).to(torch.float64), 0.0)

    def reported_loss(self, counts: WindowCounts) -> torch.Tensor:
        """The window's loss without what was skipped, 0-d; NaN if nothing was kept, for 0.0 would look perfect."""
        divisor = self._tokens() if self._by_token else max(self._num_micros(counts), 1)
        return torch.where(self.totals.num_kept_tokens > 0, self.totals.loss / divisor, math.nan)

    def _token_divisor(self, micro_batch: RowLosses) -> float:
        if self._announced_tokens is not None:
            return float(self._announced_tokens)
        if self.divisor is None:
            # Near the tokens of a window without looking at the device: the loss stays near a mean.
            self.divisor = float(micro_batch.num_entries * self._accumulation)
        return self.divisor

    def _tokens(self) -> torch.Tensor:
        return self.totals.num_kept_tokens if self._removed else self.totals.num_tokens

    def _num_micros(self, counts: WindowCounts) -> int:
        return counts.num_kept_micros if self._removed else counts.num_micros
