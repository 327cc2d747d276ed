"""One accumulation window of a Hugging Face `Trainer`: what it holds, and what becomes of its optimizer step.

Enters: the losses of its micro-batches, then the gradients that the trainer is about to clip, then the step that it
has counted. Leaves: a loss that is safe to call backward on, gradients that are dropped or put right, and the record
of the step. The verbs, in this order:

    take or take_unjudged -> add_reported      once a micro-batch
    clip -> before_optimizer -> end            once a window
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from trimtab.torch.gate import Gate
from trimtab.torch.gradients import current_lr, drop_gradients, scale_gradients, total_norm
from trimtab.torch.losses import RowLosses
from trimtab.torch.transfer import to_host
from trimtab.torch.window import WindowTotals, removed_factor
from trimtab.values import StepReason

_UNCOUNTED: Final = -1
"""Tokens of a step whose labels nobody has seen: its loss stands all the same."""


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

    def take(self, loss: torch.Tensor, rows: RowLosses, *, per_token: bool) -> torch.Tensor:
        """Judges and records one micro-batch.

        Args:
            loss: 0-d, what its trainer would call backward on.
            rows: What each of its rows cost.
            per_token: Whether the trainer takes the loss for a sum over the tokens of the whole window.

        Returns:
            The loss to call backward on, 0-d.
        """
        self._per_token = per_token
        # The final loss may hold further terms (a router's, say): it must be finite as well.
        verdict = self._gate.take(rows, extra=loss)
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
