"""Where a Hugging Face `Trainer` computes its loss, and how token losses are taken out there while it trains.

A trainer comes in when its training begins; out comes what each row of a micro-batch cost, or in words why that is not
known. `remove` leaves trainer and model as they were found.

    model.loss_function         most models of transformers call this one
    trainer.label_smoother      instead of it with `label_smoothing_factor`
    trainer.compute_loss_func   the user's own
    everything                  for a model that calls cross-entropy in its forward (BERT, T5, a module of one's own)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import torch

from trimtab.integrations.hf_smoothing import CapturingSmoother
from trimtab.torch.capture import CapturingLoss, TokenLosses
from trimtab.torch.losses import RowLosses, reduce_to_rows
from trimtab.torch.tap import LossTap, row_columns

_IGNORED: Final = -100
"""Label of a token that is not supervised, everywhere in transformers."""

_StandIn = TypeVar("_StandIn", CapturingLoss, CapturingSmoother)


class TrainerTap:
    """Stand-ins in one trainer, from the beginning of its training to the end."""

    def __init__(self, trainer: Any) -> None:
        """Puts the stand-ins in place; a compiled model is left alone, for they would make it compile again and again.

        Args:
            trainer: A `Trainer` whose model is prepared for training.
        """
        self._undo: list[Callable[[], None]] = []
        self._trainer = trainer
        # By this the trainer counts the tokens of a window; kept private there, so a test holds it in place.
        self._shifts_labels = bool(trainer._loss_shifts_labels)
        self._compiled = _is_compiled(trainer.model) or _is_compiled(trainer.model_wrapped)
        if self._compiled:
            return
        places: list[CapturingLoss | CapturingSmoother | None] = [self._stand_in_for_loss_function(trainer.model)]
        if trainer.compute_loss_func is not None:
            places.append(self._replace(trainer, "compute_loss_func", CapturingLoss(trainer.compute_loss_func)))
        # Of another smoother than transformers' own the formula is not known; its cross-entropy is found by the mode.
        if type(trainer.label_smoother).__name__ == "LabelSmoother":
            places.append(self._replace(trainer, "label_smoother", CapturingSmoother(trainer.label_smoother)))
        self._tap = LossTap(*(place for place in places if place is not None))

    def run(self, compute: Callable[[], Any], *, rows: torch.Tensor | None) -> tuple[Any, RowLosses | str]:
        """Calls `compute`, the trainer's own computation of one micro-batch's loss.

        Args:
            compute: Takes nothing.
            rows: (B,) dataset rows of the micro-batch, or (1, L) rows of the tokens of one concatenated sequence.

        Returns:
            Its result, and what each row cost, or why that is not known.
        """
        if self._compiled:
            return compute(), "the model is compiled, and its loss with it"
        result, calls = self._tap.run(compute)
        return result, self._by_rows(calls, rows)

    def count_labels(self, inputs: Any) -> torch.Tensor:
        """Supervised tokens of a batch by its labels, as the trainer counts them; 0-d, 1 where there are no labels."""
        labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
        if not isinstance(labels, torch.Tensor):
            return torch.ones((), dtype=torch.int64)
        if "shift_labels" in inputs:
            labels = inputs["shift_labels"]
        elif self._shifts_labels:
            labels = labels[..., 1:]
        return (labels != _IGNORED).sum()

    @property
    def loss_is_over_window(self) -> bool:
        """Whether the trainer takes a loss for a sum over the tokens of the whole window, and not for a mean."""
        trainer = self._trainer
        if trainer.loss_is_scaled_for_ga is not None:
            return bool(trainer.loss_is_scaled_for_ga)
        return trainer.compute_loss_func is not None or bool(trainer.model_accepts_loss_kwargs)

    @property
    def rank_factor(self) -> int:
        """What the trainer multiplies a loss by that it has divided by the tokens of all ranks, which DDP averages."""
        trainer = self._trainer
        if not trainer.args.average_tokens_across_devices:
            return 1
        return int(trainer.accelerator.num_processes // trainer.get_tp_size())

    def remove(self) -> None:
        """Puts everything back."""
        while self._undo:
            self._undo.pop()()

    def _by_rows(self, calls: list[TokenLosses], rows: torch.Tensor | None) -> RowLosses | str:
        if not calls:
            return "its loss is not a plain cross-entropy (weighted, smoothed by torch, fused, or of another kind)"
        if len(calls) > 1:
            return f"its loss is made of {len(calls)} cross-entropies"
        if rows is None:
            return "its collator gives no mapping with one sequence a row"
        [tokens] = calls
        columns = row_columns(tokens, rows.to(tokens.losses.device), shifted=self._shifts_labels)
        if columns is None:
            return f"{tokens.losses.numel()} token losses do not spread evenly over {rows.numel()} rows"
        losses, supervised, token_rows = columns
        return reduce_to_rows(losses, rows=token_rows, mask=supervised)

    def _stand_in_for_loss_function(self, model: Any) -> CapturingLoss | None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wrapper
        # transformers' property; a module of one's own may call anything by this name.
        if not isinstance(inspect.getattr_static(base, "loss_function", None), property):
            return None
        found = vars(base).get("_loss_function")

        def restore() -> None:
            if found is None:
                del base._loss_function
            else:
                base.loss_function = found

        stand_in = CapturingLoss(base.loss_function)
        base.loss_function = stand_in
        self._undo.append(restore)
        return stand_in

    def _replace(self, holder: Any, name: str, stand_in: _StandIn) -> _StandIn:
        found = getattr(holder, name)
        setattr(holder, name, stand_in)
        self._undo.append(lambda: setattr(holder, name, found))
        return stand_in


def _is_compiled(model: Any) -> bool:
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
