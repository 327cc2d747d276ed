"""Hugging Face's label smoothing with its token losses handed out.

Hugging Face smooths with a formula of its own, which differs from torch's `label_smoothing` in how the uniform part is
averaged. This computes the same terms in the same order, so that gradients equal its own bit for bit, and keeps what
each token contributed.

Shapes: B sequences, T tokens, N = B * T, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from trimtab.torch.capture import TokenLosses


class LabelSmoothing(Protocol):
    """What is known of the smoother that is replaced."""

    epsilon: float
    ignore_index: int

    def __call__(
        self,
        model_output: Any,
        labels: torch.Tensor,
        shift_labels: bool = ...,  # noqa: FBT001 - the signature is Hugging Face's
        num_items_in_batch: Any = ...,
    ) -> torch.Tensor:
        """The smoothed loss."""


class CapturingSmoother:
    """Stands in for a trainer's label smoother while it trains.

    Attributes:
        original: The smoother whose settings are used.
        active: Whether token losses are kept.
        calls: The token losses that were kept and not yet taken.
        was_called: Whether the smoother was called while active.
    """

    def __init__(self, original: LabelSmoothing) -> None:
        """Takes over the settings of `original`."""
        self.original = original
        self.active = False
        self.calls: list[TokenLosses] = []
        self.was_called = False

    def __call__(
        self,
        model_output: Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...],
        labels: torch.Tensor,
        shift_labels: bool = False,  # noqa: FBT001, FBT002 - the signature is Hugging Face's
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """(1 - epsilon) x mean cross-entropy + epsilon x mean over all classes, as Hugging Face computes it.

        Args:
            model_output: Holds logits (B, T, C) under "logits", or as its first entry.
            labels: (B, T), `ignore_index` where not supervised.
            shift_labels: Whether the logits of a token predict the next label.
            num_items_in_batch: Supervised tokens of the whole window; None: of this micro-batch.

        Returns:
            The 0-d loss.
        """
        if not self.active:
            return self.original(model_output, labels, shift_labels, num_items_in_batch)
        self.was_called = True
        epsilon, ignore_index = self.original.epsilon, self.original.ignore_index
        logits = model_output["logits"] if isinstance(model_output, Mapping) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        surprisal = -torch.nn.functional.log_softmax(logits, dim=-1)
        ignored = labels.eq(ignore_index).unsqueeze(-1)
        own = surprisal.gather(-1, labels.clamp(min=0).unsqueeze(-1)).masked_fill(ignored, 0.0)
        uniform = surprisal.sum(-1, keepdim=True, dtype=torch.float32).masked_fill(ignored, 0.0)
        num_classes = surprisal.shape[-1]
        divisor = num_items_in_batch if num_items_in_batch is not None else ignored.numel() - ignored.long().sum()
        if isinstance(divisor, torch.Tensor):
            divisor = divisor.to(own.device)
        token_losses = (1 - epsilon) * own.detach().float() + (epsilon / num_classes) * uniform.detach()
        self.calls.append(TokenLosses(token_losses.flatten(), ~ignored.flatten()))
        return (1 - epsilon) * (own.sum() / divisor) + epsilon * (uniform.sum() / (divisor * num_classes))
