"""One accumulation window of a Hugging Face `Trainer`: what it holds, and what becomes of its optimizer step.

Enters: the losses of its micro-batches, then the gradients that the trainer is about to clip, then the step that it
has counted. Leaves: a loss that is safe to call backward on, gradients that are put right, an optimizer that steps or
does not, and the record of the step. Nothing here waits for the device but what says so. The verbs, in this order:

    take or take_unjudged -> report            once a micro-batch
    clip -> before_optimizer -> end            once a window; hold_schedule before the end
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from trimtab.notices import say
from trimtab.run import STEP_CODE
from trimtab.torch.gate import Gate, after_scaler
from trimtab.torch.gradients import current_lr, gradient_norms, loss_scale, scale_gradients
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


def loss_beyond_rows(loss: torch.Tensor, rows: RowLosses, *, num_items: Any, rank_factor: int = 1) -> torch.Tensor:
    """What a trainer's loss holds beside the losses of its tokens. Does not wait for the device.

    Args:
        loss: 0-d, detached, the final loss of a micro-batch.
        rows: What its rows cost.
        num_items: Supervised tokens of the window, by which it may have been divided; None: by its own tokens.
        rank_factor: What it may have been multiplied by after that, see `TrainerTap.rank_factor`.

    Returns:
        0-d, in the unit of a mean over tokens; 0 where the loss is the sum of its tokens' losses over either count, up
        to rounding, and where it is not finite.
    """
    total = rows.loss_sum.detach()
    means = [(loss, rows.num_tokens.clamp(min=1))]
    if num_items is not None:
        # A compute_loss of the user's own may leave the factor out.
        means += [(loss / factor, num_items) for factor in sorted({rank_factor, 1})]
    noise = max(_NOISE, _NOISE_EPS * torch.finfo(loss.dtype).eps)
    rests = []
    for mean, divisor in means:
        rest = mean - total / divisor
        rests.append(torch.where(rest.abs() > noise * mean.abs(), rest, 0.0))
    rest = functools.reduce(lambda one, other: torch.where(one.abs() <= other.abs(), one, other), rests)
    return torch.where(torch.isfinite(rest) & (rows.num_tokens > 0), rest, 0.0)


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
        self._removes = guard is not None and guard.config.skipped_tokens == "removed"
        self.begin()

    def begin(self) -> None:
        """Begins a window: nothing is in it."""
        self._totals = WindowTotals()
        self._reason: StepReason | torch.Tensor | None = None
        self._grad_norm: Any = None
        self._clip_at = math.inf
        self._lr: Any = math.nan
        self._loss_scale: torch.Tensor | None = None

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
        self._totals.num_tokens = self._totals.num_tokens + rows.num_tokens
        return loss if decision is None else decision.kept(loss)

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

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        """Adds what the trainer is about to report of a micro-batch, 0-d; their sum is the loss of its step.

        Returns:
            What it is to report: at the end of a window whose skipped tokens are removed, the rest of its mean as well.
        """
        self._totals.loss = self._totals.loss + loss
        if not self._removes or not self._trainer.accelerator.sync_gradients:
            return loss
        factor = removed_factor(self._gate.core.window, by_token=self._per_token)
        return loss + (self._totals.loss * (factor - 1.0)).to(loss.dtype)

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
        """Looks at the gradients before the trainer clips them, and lets it unless it is known that nothing counts.

        Args:
            clip: The trainer's own clipping, to the norm `clip_at`; gives the norm before.
            parameters: Those that it clips.
            clip_at: The largest norm it leaves.

        Returns:
            The norm before clipping.
        """
        self._judge()
        if self._gate.drop_reason() is not None:
            return torch.zeros(())  # a trainer logs what it gets
        self._grad_norm = clip(parameters)
        self._clip_at = clip_at
        return self._grad_norm

    def _judge(self) -> None:
        """Puts the window's gradients right, and says whether the optimizer's next step is to change anything.

        Waits for the device where the host decides.
        """
        gate = self._gate
        if gate.drop_reason() is not None:  # its zeros stay until the end: a scaler wants to have seen something
            self._reason = gate.judge_step(None)
            return
        gate.close_window()
        norms = None
        if gate.core.guard is not None:
            parameters = gate.parameters()
            if self._removes:
                factor = removed_factor(gate.core.window, by_token=self._per_token)
                scale_gradients(parameters, factor)
                self._totals.loss = self._totals.loss * factor
            if self._trainer.accelerator.scaler is None:  # a scaler looks for itself, and halves its scale
                norms = gradient_norms(parameters)
        self._reason = gate.judge_step(norms)

    def before_optimizer(self) -> None:
        """Looks at what the trainer is about to step with."""
        if self._reason is None:  # a trainer of the user's own, which clips in a way of its own
            self._judge()
        trainer = self._trainer
        self._lr = current_lr(trainer.optimizer)
        self._loss_scale = self._scale_now()

    def hold_schedule(self) -> None:
        """After the optimizer was called: keeps the schedule where it is if the step was dropped. Waits for the device.

        What the trainer asks next is accelerate's word on it, which a gradient scaler has just renewed.
        """
        reason = self._reason
        assert reason is not None, "judged before the optimizer"
        code = STEP_CODE[reason] if isinstance(reason, str) else reason
        if code != STEP_CODE["stepped"]:
            self._holding = True
            self._trainer.optimizer._is_overflow = True

    def end(self) -> None:
        """Records the step that the trainer has just counted, and begins the next window."""
        if self._holding:  # without a scaler nobody else takes it back
            self._holding = False
            self._trainer.optimizer._is_overflow = False
        reason: StepReason | torch.Tensor = self._reason if self._reason is not None else "stepped"
        scale = self._scale_now()
        if scale is not None and self._loss_scale is not None:
            # accelerate's own flag stays down with a fused optimizer, whose step is called and does nothing.
            reason = after_scaler(reason, overflowed=scale < self._loss_scale)
        core, loss = self._gate.core, self._own_mean()
        if self._gate.drop_reason() is not None:
            self._gate.close_window()
        if core.guard is not None:
            # 0.0 would look perfect where nothing was kept.
            loss = torch.where(torch.as_tensor(core.window.num_kept_tokens > 0).to(loss.device), loss, math.nan)
        self._gate.end(
            reason,
            loss=loss,
            num_tokens=self._totals.num_tokens,
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
        loss, num_tokens = self._totals.loss, self._totals.num_tokens
        if not self._per_token or self._rank_factor == 1:
            return loss
        share = self._num_items / (self._rank_factor * num_tokens.clamp(min=1))
        return torch.where(num_tokens > 0, loss * share.to(loss.dtype), loss)

    def _scale_now(self) -> torch.Tensor | None:
        """The scale of the trainer's gradient scaler, 0-d; None without one."""
        scaler = self._trainer.accelerator.scaler
        return None if scaler is None else loss_scale(scaler, device=self._trainer.accelerator.device)
