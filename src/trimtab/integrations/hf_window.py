"""One accumulation window of a Hugging Face `Trainer`: what it holds, and what becomes of its optimizer step.

Enters: the losses of its micro-batches, then the gradients that the trainer is about to clip, then the step that it
has counted. Leaves: a loss that is safe to call backward on, gradients that are put right, an optimizer that steps or
does not, and the record of the step. Nothing here waits for the device but what says so. The verbs, in this order:

    hook, unhook                               once a training
    take or take_unjudged -> report            once a micro-batch
    clip -> before_optimizer -> end            once a window; hold_schedule before the end
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch
from torch import nn

from trimtab.integrations.hf_terms import loss_beyond_rows
from trimtab.notices import say
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import GradientNorms, gradient_norms, scale_gradients
from trimtab.torch.losses import RowLosses
from trimtab.torch.schedule import current_lr, loss_scale
from trimtab.torch.step_verdict import StepVerdict
from trimtab.torch.window import removed_factor, unless_empty

_UNCOUNTED: Final = -1
"""Tokens of a step of which nobody has seen all labels: its loss stands all the same."""


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
        self._num_items: Any = None
        self._rank_factor = 1
        self._num_micros = 0
        self._num_beyond = torch.zeros((), dtype=torch.int64)
        self._holding = False
        guard = gate.core.guard
        self._removes = guard is not None and guard.config.removes
        self._clip: Any = None
        self.begin()

    def begin(self) -> None:
        """Begins a window: nothing is in it."""
        self._loss = torch.zeros(())
        self._num_tokens = torch.zeros((), dtype=torch.int64)
        self._verdict: StepVerdict | None = None
        self._grad_norm: Any = None
        self._clip_at = math.inf
        self._lr: Any = math.nan
        self._loss_scale: torch.Tensor | None = None

    # Once a training.

    def hook(self) -> None:
        """Lets `clip` see the gradients that the trainer clips."""
        accelerator = self._trainer.accelerator
        self._clip = accelerator.clip_grad_norm_

        @functools.wraps(self._clip)
        def measured_clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            def clip(parameters: list[nn.Parameter]) -> Any:
                return self._clip(parameters, max_norm, *args, **kwargs)

            return self.clip(clip, list(parameters), clip_at=max_norm)

        accelerator.clip_grad_norm_ = measured_clip

    def unhook(self) -> None:
        """Puts the trainer's own clipping back."""
        self._trainer.accelerator.clip_grad_norm_ = self._clip

    # Once a micro-batch.

    def take(
        self, loss: torch.Tensor, rows: RowLosses, *, per_token: bool, num_items: Any = None, rank_factor: int = 1
    ) -> torch.Tensor:
        """Judges and records one micro-batch.

        Args:
            loss: 0-d, what its trainer would call backward on.
            rows: What each of its rows cost.
            per_token: Whether the trainer takes the loss for a sum over the tokens of the whole window.
            num_items: Supervised tokens of that window, as the trainer counts them; None where it does not.
            rank_factor: What the trainer multiplies such a loss by, see `TrainerTap.rank_factor`.

        Returns:
            The loss to call backward on, 0-d.
        """
        self._per_token, self._num_items, self._rank_factor = per_token, num_items, rank_factor
        # The final loss may hold further terms (a router's, say): it must be finite as well, and is judged with them.
        beyond = loss_beyond_rows(loss.detach(), rows, num_items=num_items, rank_factor=rank_factor)
        self._num_micros += 1
        self._num_beyond = self._num_beyond + (beyond != 0)
        decision = self._gate.take(rows, extra=loss, beyond=beyond)
        self._num_tokens = self._num_tokens + rows.num_tokens
        return self._gate.bind(loss, decision)

    def take_unjudged(self, rows: torch.Tensor) -> None:
        """Records a micro-batch whose loss went by unseen; what nobody judged is kept.

        Args:
            rows: (B,) its rows, or (B, T) those of its tokens.
        """
        self._gate.take_unjudged(rows.flatten(), packed=rows.dim() == 2)

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        """Adds what the trainer is about to report of a micro-batch, 0-d; their sum is the loss of its step.

        Returns:
            What it is to report: at the end of a window whose skipped tokens are removed, the rest of its mean as well.
        """
        self._loss = self._loss + loss
        if not self._removes or not self._trainer.accelerator.sync_gradients:
            return loss
        return loss + (self._loss * (self._removed_factor() - 1.0)).to(loss.dtype)

    def _removed_factor(self) -> float | torch.Tensor:
        """What takes the skipped tokens of the window out of what the trainer has divided by."""
        counts_all_ranks = self._rank_factor == self._gate.ranks.world_size
        num_items = self._num_items if counts_all_ranks else None
        return removed_factor(self._gate.core.window, by_token=self._per_token, num_items=num_items)

    # At the end of a training.

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
        """Judges the gradients that the trainer clips, and lets it unless it is known that nothing counts.

        Waits for the device where the host decides.

        Args:
            clip: The trainer's own clipping, to the norm `clip_at`; gives the norm before.
            parameters: Those that it clips.
            clip_at: The largest norm it leaves.

        Returns:
            The norm before clipping.
        """
        is_empty, norms = self._close(), None
        if not is_empty and not self._has_scaler:
            norms = self._measured()
        if not is_empty:
            self._grad_norm, self._clip_at = clip(parameters), clip_at
            if self._has_scaler:  # only the clipping has given gradients their true size
                norms = _total_alone(self._grad_norm)
        self._verdict = self._gate.judge_step(norms)
        return torch.zeros(()) if is_empty else self._grad_norm  # a trainer logs what it gets

    def _close(self) -> bool:
        """Ends the window and puts its gradients right.

        Returns:
            Whether it is known that nothing in it counts.
        """
        gate = self._gate
        is_empty = gate.close_window(scaler_waits=self._has_scaler)
        if self._removes and not is_empty:
            factor = self._removed_factor()
            scale_gradients(gate.parameters(), factor)
            self._loss = self._loss * factor
        return is_empty

    def _measured(self) -> GradientNorms | None:
        """Norms of all that the trainer clips and steps: it clips the whole model, so that one NaN spoils all of it."""
        return gradient_norms(self._gate.parameters()) if self._gate.core.guard is not None else None

    @property
    def _has_scaler(self) -> bool:
        return self._trainer.accelerator.scaler is not None

    def before_optimizer(self) -> None:
        """Looks at what the trainer is about to step with; judges it where nobody has clipped it by `clip`."""
        if self._verdict is None:
            is_empty = self._close()
            if not is_empty and self._gate.core.guard is not None:
                with suppress(RuntimeError):  # a trainer that clips in a way of its own has done so already
                    self._trainer.accelerator.unscale_gradients()
            self._verdict = self._gate.judge_step(None if is_empty else self._measured())
        trainer = self._trainer
        self._lr = current_lr(trainer.optimizer)
        self._loss_scale = self._scale_now()

    def hold_schedule(self) -> None:
        """After the optimizer was called: keeps the schedule where it is if the step was dropped. Waits for the device.

        What the trainer asks next is accelerate's word on it, which a gradient scaler has just renewed.
        """
        assert self._verdict is not None, "judged before the optimizer"
        if self._verdict.dropped:
            self._holding = True
            self._trainer.optimizer._is_overflow = True

    def end(self) -> None:
        """Records the step that the trainer has just counted, and begins the next window."""
        if self._holding:  # without a scaler nobody else takes it back
            self._holding = False
            self._trainer.optimizer._is_overflow = False
        verdict = self._verdict if self._verdict is not None else StepVerdict()
        scale = self._scale_now()
        if scale is not None and self._loss_scale is not None:
            # accelerate's own flag stays down with a fused optimizer, whose step is called and does nothing.
            verdict = verdict.after_scaler(overflowed=scale < self._loss_scale)
        core, loss = self._gate.core, self._own_mean()
        if core.guard is not None:
            loss = unless_empty(loss, may_step=core.window.may_step)
        self._gate.end(
            verdict,
            loss=loss,
            num_tokens=_UNCOUNTED if core.window.has_unjudged else self._num_tokens,
            norm=self._grad_norm,
            clip_at=self._clip_at,
            lr=self._lr,
            loss_scale=self._loss_scale,
        )
        self.begin()

    def _own_mean(self) -> torch.Tensor:
        """The window's loss as a mean over this rank's tokens, 0-d: the log weighs ranks by theirs.

        A trainer that divides by the tokens of all ranks reports what this rank adds to their mean, times their number.
        """
        loss, num_tokens = self._loss, self._num_tokens
        if not self._per_token or self._rank_factor == 1 or self._gate.core.window.has_unjudged:
            return loss
        share = self._num_items / (self._rank_factor * num_tokens.clamp(min=1))
        return torch.where(num_tokens > 0, loss * share.to(loss.dtype), loss)

    def _scale_now(self) -> torch.Tensor | None:
        """The scale of the trainer's gradient scaler, 0-d; None without one."""
        scaler = self._trainer.accelerator.scaler
        return None if scaler is None else loss_scale(scaler, device=self._trainer.accelerator.device)


def _total_alone(norm: Any) -> GradientNorms:
    """The norm that a clipping gives back, 0-d, may be sharded; of which parameter is not known."""
    total = norm.full_tensor() if hasattr(norm, "full_tensor") else torch.as_tensor(norm)
    return GradientNorms(total, torch.empty(0, device=total.device))
