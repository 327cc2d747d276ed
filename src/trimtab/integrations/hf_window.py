"""One accumulation window of a Hugging Face `Trainer`: what it holds, and what becomes of its optimizer step.

Enters: the losses of its micro-batches, then the gradients that the trainer is about to clip, then the step that it
has counted. Leaves: a loss that is safe to call backward on, gradients that are dropped or put right, and the record
of the step. The verbs, in this order:

    take or take_unjudged -> add_reported      once a micro-batch
    clip -> before_optimizer -> end            once a window
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from trimtab.notices import say
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import current_lr, drop_gradients, scale_gradients, total_norm
from trimtab.torch.losses import RowLosses
from trimtab.torch.transfer import to_host
from trimtab.torch.window import WindowTotals, removed_factor
from trimtab.values import StepReason

_UNCOUNTED: Final = -1
"""Tokens of a step whose labels nobody has seen: its loss stands all the same."""

_NOISE: Final = 1e-3
"""Part of a loss that may come of adding it up in another order."""

_NOISE_EPS: Final = 4
"""The same in units in the last place, for a loss in half precision."""


def loss_beyond_rows(loss: torch.Tensor, rows: RowLosses, *, num_items: Any) -> torch.Tensor:
    """What a trainer's loss holds beside the losses of its tokens. Does not wait for the device.

    Args:
        loss: 0-d, detached, the final loss of a micro-batch.
        rows: What its rows cost.
        num_items: Supervised tokens of the window, by which it may have been divided; None: by its own tokens.

    Returns:
        0-d, in the unit of the loss; 0 where it is the sum of its tokens' losses over either count, up to rounding, and
        where it is not finite.
    """
    total = rows.loss_sum.detach()
    divisors = [rows.num_tokens.clamp(min=1), *([] if num_items is None else [num_items])]
    rests = [loss - total / divisor for divisor in divisors]
    rest = functools.reduce(lambda one, other: torch.where(one.abs() <= other.abs(), one, other), rests)
    noise = max(_NOISE, _NOISE_EPS * torch.finfo(loss.dtype).eps)
    is_beyond = torch.isfinite(rest) & (rest.abs() > noise * loss.abs()) & (rows.num_tokens > 0)
    return torch.where(is_beyond, rest, 0.0)


class TrainerWindow:
    """The window that one trainer is filling, again and again through one training."""

    def __init__(self, trainer: Any, gate: Gate) -> None:
        """Begins the first window.

        Args:
            trainer: The `Trainer`.
            gate: What judges and records its micro-batches.
        """
        self._trainer = trainer
        self._gate = gate
        self._per_token = False
        self._num_micros = 0
        self._num_beyond = torch.zeros((), dtype=torch.int64)
        self.begin()

    def begin(self) -> None:
        """Begins a window: nothing is in it."""
        self._totals = WindowTotals()
        self._reason: StepReason | None = None
        self._grad_norm: Any = None
        self._clip_at = math.inf
        self._lr: Any = math.nan
        self._loss_scale: float | None = None

    # Once a micro-batch.

    def take(self, loss: torch.Tensor, rows: RowLosses, *, per_token: bool, num_items: Any = None) -> torch.Tensor:
        """Judges and records one micro-batch.

        Args:
            loss: 0-d, what its trainer would call backward on.
            rows: What each of its rows cost.
            per_token: Whether the trainer takes the loss for a sum over the tokens of the whole window.
            num_items: Supervised tokens of that window, as the trainer counts them; None where it does not.

        Returns:
            The loss to call backward on, 0-d.
        """
        self._per_token = per_token
        # The final loss may hold further terms (a router's, say): it must be finite as well, and is judged with them.
        beyond = loss_beyond_rows(loss.detach(), rows, num_items=num_items)
        self._num_micros += 1
        self._num_beyond = self._num_beyond + (beyond != 0)
        verdict = self._gate.take(rows, extra=loss, beyond=beyond)
        totals = self._totals
        totals.num_tokens = totals.num_tokens + rows.num_tokens
        if verdict is None:
            return loss
        if not verdict.keep:
            return self._gate.left_out(loss)
        totals.num_kept_tokens = totals.num_kept_tokens + rows.num_tokens
        if verdict.reason == "no_tokens" and not math.isfinite(float(loss.detach())):
            # A mean over no tokens is 0/0: nothing to learn from, and nothing to blame anybody for.
            return self._gate.left_out(loss)
        return loss

    def take_unjudged(self, rows: torch.Tensor) -> None:
        """Records a micro-batch whose loss went by unseen; what nobody judged is kept.

        Args:
            rows: (B,) its rows, or (B, T) those of its tokens.
        """
        core = self._gate.core
        nothing = torch.zeros(rows.numel(), dtype=torch.int64)
        core.record_micro_batch(to_host(rows.flatten()), nothing, nothing, packed=rows.dim() == 2)
        core.window.num_tokens += 1
        self._totals.num_tokens = torch.full((), _UNCOUNTED, dtype=torch.int64)

    def add_reported(self, loss: torch.Tensor) -> None:
        """Adds what the trainer itself reports of a micro-batch, 0-d; their sum is the loss of its step."""
        self._totals.loss = self._totals.loss + loss

    # Once a training.

    def tell_further_terms(self) -> None:
        """Says at the end of a training how often the loss held more than that of the tokens. Waits for the device."""
        num_beyond = int(self._num_beyond)
        if not num_beyond:
            return
        judged = "it was judged with that" if self._gate.core.guard is not None else "rows are recorded without that"
        say(
            "hf",
            f"In {num_beyond} of {self._num_micros} micro-batches the trainer's loss was not that of their tokens "
            f"alone (a router's term, a penalty, a factor): {judged}, and no row is the cause of it.",
        )

    # Once an optimizer step.

    def clip(self, clip: Callable[[list[nn.Parameter]], Any], parameters: list[nn.Parameter], *, clip_at: float) -> Any:
        """Looks at the gradients before the trainer clips them, and lets it if the step is to be taken.

        Args:
            clip: The trainer's own clipping, to the norm `clip_at`; gives the norm before.
            parameters: Those that it clips.
            clip_at: The largest norm it leaves.

        Returns:
            The norm before clipping.
        """
        self._look_at_gradients(parameters)
        if self._reason is None:
            self._grad_norm = clip(parameters)
            self._clip_at = clip_at
        # A trainer logs what it gets; of a step without any gradient that counts, the norm is 0.
        return self._grad_norm if self._grad_norm is not None else torch.zeros(())

    def _look_at_gradients(self, parameters: list[nn.Parameter]) -> None:
        """With a guard, decides whether the step must be dropped; the norm it saw is that before clipping."""
        core, accelerator = self._gate.core, self._trainer.accelerator
        if core.guard is None:
            return
        self._reason = self._gate.drop_reason()
        if self._reason is not None:
            accelerator.unscale_gradients()  # a scaler, if there is one, wants to have seen something
            return
        if core.guard.config.skipped_tokens == "removed" and core.window.num_skipped_micros:
            factor = removed_factor(core.window, by_token=self._per_token)
            scale_gradients(parameters, factor)
            self._totals.loss = self._totals.loss * factor
        if accelerator.scaler is not None:  # a scaler looks for itself, and halves its scale
            return
        norm = total_norm(parameters)
        self._reason = self._gate.norm_reason(norm)
        if self._reason is not None:
            self._grad_norm = norm

    def before_optimizer(self) -> None:
        """Takes the gradients away from a step that is dropped: the trainer is about to take it."""
        self._gate.lift_anchor()
        scaler = self._trainer.accelerator.scaler
        self._loss_scale = scaler.get_scale() if scaler is not None else None
        self._lr = current_lr(self._trainer.optimizer)
        if self._reason is not None:
            drop_gradients(self._gate.parameters())

    def end(self) -> None:
        """Records the step that the trainer has just counted, and begins the next window."""
        loss_scale, loss = self._loss_scale, self._totals.loss
        reason: StepReason = self._reason if self._reason is not None else "stepped"
        # accelerate's own flag stays down with a fused optimizer, whose step is called and does nothing.
        if loss_scale is not None and self._trainer.accelerator.scaler.get_scale() < loss_scale:
            reason = "scaler_overflow"
        core = self._gate.core
        if core.guard is not None and not core.window.num_kept_tokens:
            loss = torch.full((), math.nan)
        self._gate.end(
            reason,
            loss=loss,
            num_tokens=self._totals.num_tokens,
            norm=self._grad_norm,
            clip_at=self._clip_at,
            lr=self._lr,
            loss_scale=loss_scale,
        )
        self.begin()
