"""`StepOutcome`: what became of one optimizer step, told without making the training thread wait."""

from __future__ import annotations

from typing import Any

import torch

from trimtab.values import StepReason


class StepOutcome:
    """What became of one optimizer step. Lazy: reading a field may wait for the device, not reading it never does."""

    __slots__ = ("_grad_norm", "_loss", "_lr", "_num_tokens", "num_skipped_micros", "num_skipped_tokens", "reason")

    reason: StepReason
    """Why it was stepped or not."""
    num_skipped_micros: int
    """Micro-batches that the guard left out."""
    num_skipped_tokens: int
    """Their supervised tokens."""

    def __init__(
        self,
        reason: StepReason,
        *,
        grad_norm: torch.Tensor | None,
        lr: Any,
        loss: torch.Tensor,
        num_tokens: torch.Tensor,
        num_skipped_micros: int,
        num_skipped_tokens: int,
    ) -> None:
        """Holds tensors where they are; the properties bring them to the host."""
        self.reason = reason
        self.num_skipped_micros = num_skipped_micros
        self.num_skipped_tokens = num_skipped_tokens
        self._grad_norm = grad_norm
        self._lr = lr
        self._loss = loss
        self._num_tokens = num_tokens

    def parts(self) -> dict[str, Any]:
        """Loss, tokens, norm and learning rate where they are, without waiting."""
        return {"loss": self._loss, "num_tokens": self._num_tokens, "norm": self._grad_norm, "lr": self._lr}

    @property
    def stepped(self) -> bool:
        """Whether parameters and optimizer state moved."""
        return self.reason == "stepped"

    @property
    def grad_norm(self) -> float | None:
        """Norm of the gradients before clipping; None where it was not measured. Waits for the device."""
        return None if self._grad_norm is None else float(self._grad_norm)

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group. Waits where it is a tensor on a device."""
        return float(self._lr)

    @property
    def loss(self) -> float:
        """Loss of the window, skipped contributions left out; NaN if nothing is left. Waits for the device."""
        return float(self._loss)

    @property
    def num_tokens(self) -> int:
        """Supervised tokens of the window, the skipped ones among them. Waits for the device."""
        return int(self._num_tokens)

    def __repr__(self) -> str:
        """Names the reason only: a repr in a debugger must not wait for a device."""
        return f"StepOutcome(reason={self.reason!r}, num_skipped_micros={self.num_skipped_micros})"
