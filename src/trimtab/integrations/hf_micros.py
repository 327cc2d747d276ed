"""The micro-batches of one training of a Hugging Face `Trainer`: whose rows they are, and what becomes of their losses.

Enters: the trainer's own `training_step` and `compute_loss`, each as a call that is still to be made. Leaves: what they
gave, with a loss that is safe to call backward on. Invariant: a loss that is computed outside of a training step, by an
evaluation, is the trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trimtab.integrations.hf_data import TrainingData
from trimtab.integrations.hf_tap import TrainerTap
from trimtab.integrations.hf_window import TrainerWindow
from trimtab.notices import warn
from trimtab.run import RunCore
from trimtab.torch.losses import RowLosses, rows_alone


class TrainerMicros:
    """What is judged and recorded of each micro-batch, from the beginning of one training to its end."""

    def __init__(self, core: RunCore, *, tap: TrainerTap, data: TrainingData, window: TrainerWindow) -> None:
        """Begins a training.

        Args:
            core: The run that it is.
            tap: Where the trainer computes its loss; this is its owner from now on.
            data: What is known of the rows.
            window: The window that they fill.
        """
        self._core = core
        self._tap = tap
        self._data = data
        self._window = window
        self._in_step = False
        self._said_no_row_losses = False

    def remove(self) -> None:
        """Takes the tap out."""
        self._tap.remove()

    def step(self, compute: Callable[[], torch.Tensor], inputs: Any) -> torch.Tensor:
        """One training step of the trainer, forward and backward.

        Args:
            compute: The trainer's own.
            inputs: The batch.

        Returns:
            What the trainer is to report of it, 0-d.
        """
        self._data.take(inputs, core=self._core)
        num_micros = self._core.window.num_micros
        self._in_step = True
        try:
            reported = compute()
        finally:
            self._in_step = False
        if self._core.window.num_micros == num_micros:
            self._say_no_row_losses("its training_step does not call compute_loss")
            self._window.take_unjudged(self._data.known_rows())
        return self._window.report(reported)

    def loss(self, compute: Callable[[], Any], inputs: Any, *, num_items: Any) -> Any:
        """The loss of one micro-batch, judged and recorded where it is one of a training step.

        Args:
            compute: The trainer's own.
            inputs: The batch, whose labels it may take away.
            num_items: Supervised tokens of the window, as the trainer counts them; None where it does not.

        Returns:
            What `compute` gave, with the loss to call backward on in the place of its own.
        """
        if not self._in_step:
            return compute()
        num_labels = self._tap.count_labels(inputs)
        result, rows = self._tap.run(compute, rows=self._data.rows)
        loss, outputs = (result[0], result[1:]) if isinstance(result, tuple) else (result, ())
        loss = self._take(loss, rows, num_labels, num_items=num_items)
        return (loss, *outputs) if outputs else loss

    def _take(
        self, loss: torch.Tensor, rows: RowLosses | str, num_labels: torch.Tensor, *, num_items: Any
    ) -> torch.Tensor:
        per_token = num_items is not None and self._tap.loss_is_over_window
        factor = self._tap.rank_factor
        if isinstance(rows, str):
            self._say_no_row_losses(rows)
            loss_sum = loss.detach() * (num_items / factor if per_token else num_labels)
            rows = rows_alone(self._data.known_rows(), loss_sum=loss_sum, num_tokens=num_labels)
        return self._window.take(loss, rows, per_token=per_token, num_items=num_items, rank_factor=factor)

    def _say_no_row_losses(self, why: str) -> None:
        if self._said_no_row_losses:
            return
        self._said_no_row_losses = True
        unknown = self._data.why_unknown
        # Else it was said when the run was made, with what to do about it.
        if not unknown and self._core.is_first_rank:
            warn("hf", f"Trimtab cannot tell what each row cost: {why}. Rows are recorded without shares.")
        self._core.event("no_row_losses", {"why": unknown or why})
