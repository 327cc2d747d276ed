"""The train loss over the steps between two evaluations, which an evaluation is laid beside.

Enters: steps, and that an evaluation has taken place. Leaves: a mean. Invariant: several evaluations of one step (on
several datasets) are laid beside the same mean.
"""

from __future__ import annotations

import math
from typing import Any

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.state import damaged, is_finite, read_count, read_entries


class TrainLoss:
    """Sums the losses since the last evaluation."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._num_steps = 0
        self._evaluated_at: int | None = None
        self._mean: float | None = None

    def absorb(self, item: ObservedStep) -> None:
        """Takes the loss of a step; one that is not finite, or not of a step that was taken, is left out."""
        if item.is_stepped and math.isfinite(item.loss):
            self._sum += item.loss
            self._num_steps += 1

    def at_evaluation(self, step: int) -> float | None:
        """Mean over the steps since the evaluation before; None where no loss is known."""
        if step != self._evaluated_at:
            self._mean = self._sum / self._num_steps if self._num_steps else None
            self._evaluated_at, self._sum, self._num_steps = step, 0.0, 0
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        is_known = math.isfinite(self._sum)  # a sum of losses near the largest float is no number any more
        return {
            "sum": self._sum if is_known else 0.0,
            "num_steps": self._num_steps if is_known else 0,
            "evaluated_at": self._evaluated_at,
            "mean": self._mean if self._mean is None or math.isfinite(self._mean) else None,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("sum", "num_steps", "evaluated_at", "mean")
        total, num_steps, evaluated_at, mean = read_entries(state, keys, where="train_loss")
        if not is_finite(total) or (mean is not None and not is_finite(mean)):
            raise damaged(f"train_loss's sum and mean are {total!r} and {mean!r}, not finite numbers")
        self._num_steps = read_count(num_steps, name="train_loss's num_steps")
        self._evaluated_at = (
            None if evaluated_at is None else read_count(evaluated_at, name="train_loss's evaluated_at")
        )
        self._sum, self._mean = float(total), mean
