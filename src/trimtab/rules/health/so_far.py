"""What judgements ask of the steps up to now: the train loss between two evaluations, the rate, whether routers report.

Enters: steps, and that an evaluation or a report has taken place. Leaves: numbers. Invariant: several evaluations of
one step (on several datasets) are laid beside the same mean.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.state import damaged, is_finite, read_count, read_entries


class SoFar:
    """Remembers what is no signal by itself.

    Attributes:
        lr: Learning rate of the last step that has one.
        has_router: Whether routers report too.
    """

    name: ClassVar[str] = "so_far"

    def __init__(self) -> None:
        self.lr: float | None = None
        self.has_router = False
        self._sum = 0.0
        self._num_steps = 0
        self._evaluated_at: int | None = None
        self._mean: float | None = None

    def absorb(self, item: ObservedStep) -> None:
        """Takes a step; of its loss only one that is finite, of a step that was taken."""
        if item.lr is not None and math.isfinite(item.lr):
            self.lr = item.lr
        if item.is_stepped and math.isfinite(item.loss):
            self._sum += item.loss
            self._num_steps += 1

    def train_loss_at(self, step: int) -> float | None:
        """Mean train loss over the steps since the evaluation before; None where no loss is known."""
        if step != self._evaluated_at:
            self._mean = self._sum / self._num_steps if self._num_steps else None
            self._evaluated_at, self._sum, self._num_steps = step, 0.0, 0
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        is_known = math.isfinite(self._sum)  # a sum of losses near the largest float is no number any more
        return {
            "lr": self.lr,
            "has_router": self.has_router,
            "sum": self._sum if is_known else 0.0,
            "num_steps": self._num_steps if is_known else 0,
            "evaluated_at": self._evaluated_at,
            "mean": self._mean if self._mean is None or math.isfinite(self._mean) else None,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("lr", "has_router", "sum", "num_steps", "evaluated_at", "mean")
        lr, has_router, total, num_steps, evaluated_at, mean = read_entries(state, keys, where="so_far")
        if not is_finite(total) or any(one is not None and not is_finite(one) for one in (lr, mean)):
            raise damaged(f"so_far's lr, sum and mean are {lr!r}, {total!r} and {mean!r}, not finite numbers")
        if not isinstance(has_router, bool):
            raise damaged(f"so_far's has_router is {has_router!r}, neither true nor false")
        self._num_steps = read_count(num_steps, name="so_far's num_steps")
        self._evaluated_at = None if evaluated_at is None else read_count(evaluated_at, name="so_far's evaluated_at")
        self._sum, self._mean = float(total), mean
        self.lr, self.has_router = lr, has_router
