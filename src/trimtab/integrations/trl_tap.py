"""Where TRL's `SFTTrainer` computes its loss, and how token losses are taken out there while it trains.

    nll, dft                  the fused head of its model hands out the log-probability of each token, without logits
    label smoothing           its label smoother, as any Trainer's
    a loss function by hand   the user's own `compute_loss_func`, as any Trainer's

In the latter two the fused head runs as well, for TRL's metrics; what it hands out is then not the loss. Shapes: B
sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trimtab.integrations.hf_tap import TrainerTap
from trimtab.torch.capture import TokenLosses
from trimtab.torch.losses import RowLosses


class SFTTap(TrainerTap):
    """Stand-ins in one SFTTrainer, from the beginning of its training to the end."""

    def __init__(self, trainer: Any) -> None:
        """Puts the stand-ins in place.

        Args:
            trainer: An `SFTTrainer` whose model is prepared for training.
        """
        super().__init__(trainer)
        self._dft = trainer.args.loss_type == "dft"
        smooths = trainer.label_smoother is not None and not self._dft
        self._fused = trainer.compute_loss_func is None and not smooths
        self._calls: list[TokenLosses] | None = None
        # On the outermost module: a compiled or distributed one hands the same outputs on, outside of what is compiled.
        self._undo.append(trainer.model_wrapped.register_forward_hook(self._look).remove)

    def run(self, compute: Callable[[], Any], *, rows: torch.Tensor | None) -> tuple[Any, RowLosses | str]:
        """Calls `compute`, the trainer's own computation of one micro-batch's loss.

        Args:
            compute: Takes nothing.
            rows: (B,) dataset rows of the micro-batch, or (B, T) rows of its tokens.

        Returns:
            Its result, and what each row cost, or why that is not known.
        """
        if not self._fused:
            return super().run(compute, rows=rows)
        calls: list[TokenLosses] = []
        self._calls = calls
        try:
            result = compute()
        finally:
            self._calls = None
        if len(calls) != 1:
            return result, f"{len(calls)} forwards of its model gave log_probs where TRL 1.16 has one"
        return result, self._by_rows(calls, rows)

    def _look(self, model: Any, inputs: Any, outputs: Any) -> None:
        log_probs = getattr(outputs, "log_probs", None)
        if self._calls is None or log_probs is None:
            return
        losses = -log_probs.detach()
        if self._dft:  # each token weighed by its own probability
            losses = losses * (-losses).exp()
        self._calls.append(TokenLosses(losses.flatten(), outputs.label_mask.flatten()))
