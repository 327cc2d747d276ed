"""The sums of one accumulation window, kept on the device, and the two ways in which they become a mean.

`normalize="micro"`: every micro-batch counts alike, whatever its tokens. `normalize="window"`: every supervised token
of the window counts alike. Under `skipped_tokens="removed"` what the guard left out is taken out of the divisor too.

What a window holds is known only when it is complete, and backward is called before: so a loss is divided by what is
known, and `WindowMean.put_right` puts the gradients right before they are clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.guard.counts import WindowCounts
from trimtab.torch.decision import Decision
from trimtab.torch.gradients import GradientNorms, gradient_norms, scale_gradients, widest
from trimtab.torch.losses import RowLosses
from trimtab.torch.ranks import Ranks


def unless_empty(loss: torch.Tensor, *, may_step: bool | torch.Tensor) -> torch.Tensor:
    """A window's loss, or NaN where nothing in it was kept: 0.0 would look perfect. Never waits.

    Args:
        loss: 0-d.
        may_step: Whether anything was kept, a bool or 0-d on the device.
    """
    if isinstance(may_step, bool):
        may_step = torch.full((), may_step, device=loss.device)
    return torch.where(may_step.to(loss.device, non_blocking=loss.device.type != "cpu"), loss, math.nan)


def removed_factor(
    counts: WindowCounts, *, by_token: bool, num_items: int | torch.Tensor | None = None
) -> float | torch.Tensor:
    """What takes skipped micro-batches out of a divisor that a host has used already; 0-d where a device decides.

    Args:
        counts: The window; where nothing in it was kept, the factor is 0.
        by_token: Whether the host divided by the tokens of the window (of all ranks), and not by its micro-batches.
        num_items: Those tokens as the host has counted them itself; asked for where a micro-batch was not judged, whose
            tokens are in no other count. None: the factor is 1 then.
    """
    if not by_token:
        return _quotient(counts.num_micros, counts.num_kept_micros)
    if not counts.has_unjudged:
        return _quotient(counts.num_tokens, counts.num_kept_tokens)
    return 1.0 if num_items is None else _quotient(num_items, num_items - counts.num_skipped_tokens)


def _quotient(dividend: float | torch.Tensor, divisor: int | torch.Tensor) -> float | torch.Tensor:
    """In float64, the same bits of tensors as of numbers; 0 where there is nothing to divide by."""
    if isinstance(divisor, torch.Tensor):
        least_one = divisor.clamp(min=1).to(widest(divisor.device))
        if not isinstance(dividend, torch.Tensor):
            # A number over a tensor is the number times a reciprocal to torch: 49 / 49 would be below 1.
            dividend = torch.full_like(least_one, dividend)
        return torch.where(divisor > 0, dividend.to(least_one) / least_one, 0.0)
    return dividend / divisor if divisor else 0.0


class WindowMean:
    """Turns the loss sums of micro-batches into losses for backward, and their gradients into those of a mean.

    Attributes:
        num_tokens: Supervised tokens of this rank in the window that is being filled, those of skipped micro-batches
            among them; 0-d, on the device as soon as it holds a micro-batch.
        divisor: What loss sums are divided by under "window": any fixed number does.
    """

    def __init__(
        self,
        *,
        normalize: Literal["micro", "window"],
        accumulation: int,
        guard: GuardConfig | None,
        ranks: Ranks,
        divisor: float | None = None,
    ) -> None:
        """Begins with an empty window.

        Args:
            normalize: What counts alike: micro-batches, or tokens.
            accumulation: Micro-batches in a full window.
            guard: Settings of the guard that judges the window, and so counts the tokens of all ranks; None: nothing.
            ranks: The processes that share a window; their gradients are averaged.
            divisor: As the attribute; None: the first micro-batch sets it.
        """
        self.divisor = divisor
        self._by_token = normalize == "window"
        self._accumulation = accumulation
        self._is_judged = guard is not None
        self._removed = guard is not None and guard.removes
        self._ranks = ranks
        self.begin()

    def begin(self) -> None:
        """Forgets the window that was stepped."""
        self.num_tokens = torch.zeros((), dtype=torch.int64)
        self._num_kept_tokens = torch.zeros((), dtype=torch.int64)
        self._loss_sum = torch.zeros(())
        self._announced_tokens: int | None = None
        self._aux_divisor = self._accumulation

    def announce(self, *, num_tokens: int, num_micros: int | None) -> None:
        """Tells what the window will hold, before its first micro-batch; tokens of all ranks, micro-batches of one."""
        self._announced_tokens = num_tokens
        # Multiplied by the ranks together with the tokens' losses, and then averaged over them: a mean over ranks.
        self._aux_divisor = (num_micros if num_micros is not None else self._accumulation) * self._ranks.world_size

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

    def take(self, micro_batch: RowLosses, aux: torch.Tensor | None, decision: Decision | None) -> torch.Tensor:
        """Counts a micro-batch.

        Among several ranks the first one of a run under "window" waits for all ranks: they settle on one divisor.

        Args:
            micro_batch: Its losses.
            aux: 0-d, its further terms.
            decision: Whether it takes part in the update; None: it does.

        Returns:
            Its loss, 0-d, for `Gate.bind`.
        """
        if self._by_token:
            self._add(micro_batch.loss_sum, micro_batch.num_tokens, decision)
            loss = micro_batch.loss_sum / self._token_divisor(micro_batch)
        else:
            mean = micro_batch.loss_sum / micro_batch.num_tokens.clamp(min=1)
            self._add(mean, micro_batch.num_tokens, decision)
            loss = mean / self._accumulation
        if aux is not None:
            loss = loss + aux / self._aux_divisor
        return loss

    def put_right(
        self, parameters: Sequence[nn.Parameter], counts: WindowCounts, *, measures: bool = False
    ) -> GradientNorms | None:
        """Gives the window's gradients their scale; measures them where anybody wants to know.

        Under "window" without a guard, among several ranks, it sums the tokens of the window over them.

        Args:
            parameters: Those whose gradients the window has left.
            counts: The window.
            measures: Whether the norms are wanted without a guard, too, which always wants them.
        """
        factor = self._factor(counts)
        if factor is not None:
            scale_gradients(parameters, factor)
        return gradient_norms(parameters) if measures or self._is_judged else None

    def reported_loss(self, counts: WindowCounts) -> torch.Tensor:
        """This rank's loss of the window without what was skipped, 0-d; NaN if nothing was kept: 0.0 looks perfect."""
        divisor: Any = self._num_micros(counts)
        if self._by_token:
            divisor = self._num_kept_tokens if self._removed else self.num_tokens
        return unless_empty(self._loss_sum / divisor, may_step=self._num_kept_tokens > 0)

    def _factor(self, counts: WindowCounts) -> float | torch.Tensor | None:
        """What the window's gradients must be multiplied by, a number or 0-d on the device; None: nothing at all."""
        if not self._by_token:
            factor = _quotient(self._accumulation, self._num_micros(counts))
            return None if isinstance(factor, float) and factor == 1.0 else factor
        divisor = self._announced_tokens if self._announced_tokens is not None else self.divisor
        assert divisor is not None, "the window holds a micro-batch, so the divisor is known"
        if self._is_judged:
            tokens = counts.num_kept_tokens if self._removed else counts.num_tokens
        else:
            own = self.num_tokens
            tokens = own if self._ranks.alone else self._ranks.summed(own.to(torch.float64).reshape(1))[0]
        # DDP and FSDP2 average over ranks.
        return _quotient(float(divisor * self._ranks.world_size), tokens)

    def _add(self, loss: torch.Tensor, num_tokens: torch.Tensor, decision: Decision | None) -> None:
        """Adds a micro-batch to the window; one that does not count adds to `num_tokens` alone."""
        loss, num_kept_tokens = loss.detach(), num_tokens
        if decision is not None:
            loss, num_kept_tokens = decision.kept(loss), decision.by_verdict(num_tokens)
        self._loss_sum = self._loss_sum + loss
        self.num_tokens = self.num_tokens + num_tokens
        self._num_kept_tokens = self._num_kept_tokens + num_kept_tokens

    def _token_divisor(self, micro_batch: RowLosses) -> float:
        if self._announced_tokens is not None:
            return float(self._announced_tokens)
        if self.divisor is None:
            # Near the tokens of a window without looking at the device: the loss stays near a mean.
            num_entries = float(micro_batch.num_entries)
            if not self._ranks.alone:  # gradients are averaged over ranks, so all must have divided by the same
                figures = torch.tensor([num_entries], dtype=torch.float64, device=micro_batch.loss_sum.device)
                num_entries = self._ranks.summed(figures).item() / self._ranks.world_size
            self.divisor = num_entries * self._accumulation
        return self.divisor

    def _num_micros(self, counts: WindowCounts) -> int | torch.Tensor:
        num_micros: int | torch.Tensor = counts.num_kept_micros if self._removed else counts.num_micros
        return num_micros
