"""Step records of another tool's log, in the order of the file, before steps that stand twice are told apart.

Enters: columns that a format decoded. Leaves: `StepRecords`. Invariants: a value that was not logged is told apart from
one that is NaN; tokens are a count or are not known. Shapes: N entries.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.steps import UNKNOWN_REASON

UNCOUNTED = -1
"""Tokens of a step whose tokens nobody counted: its loss stands as it is."""

MAX_COUNT: Final = 2**53
"""What is as much or more is no count of tokens; up to here a float64 holds every whole number."""


class StepRecords(NamedTuple):
    """Entries of a log at step level: parallel arrays, in the order of the file.

    Attributes:
        step: (N,) int64.
        place: (N,) int64 line or entry number of each, counted from 1.
        loss: (N,) float64; NaN where not logged, and where it was NaN.
        has_loss: (N,) bool, tells the two apart.
        grad_norm: (N,) float64 before clipping, likewise.
        has_grad_norm: (N,) bool.
        lr: (N,) float64; NaN where unknown.
        loss_scale: (N,) float64; NaN where unknown.
        num_tokens: (N,) int64 supervised tokens of the step; `UNCOUNTED` where unknown.
        reason: (N,) uint8 index into `trimtab.values.STEP_REASONS`, or `UNKNOWN_REASON`.
    """

    step: NDArray[np.int64]
    place: NDArray[np.int64]
    loss: NDArray[np.float64]
    has_loss: NDArray[np.bool_]
    grad_norm: NDArray[np.float64]
    has_grad_norm: NDArray[np.bool_]
    lr: NDArray[np.float64]
    loss_scale: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    reason: NDArray[np.uint8]

    @property
    def num_records(self) -> int:
        """Number of entries (N); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    def take(self, which: NDArray[np.integer | np.bool_]) -> StepRecords:
        """The entries that an index array or a mask picks."""
        return StepRecords._make(column[which] for column in self)

    @classmethod
    def of(
        cls,
        step: Any,
        *,
        place: Any,
        loss: Any = None,
        has_loss: Any = None,
        grad_norm: Any = None,
        has_grad_norm: Any = None,
        lr: Any = None,
        loss_scale: Any = None,
        num_tokens: Any = None,
        reason: Any = None,
    ) -> StepRecords:
        """Records from columns that `numpy.asarray` takes; see the attributes.

        Args:
            step: (N,) steps.
            place: (N,) where each stands.
            loss: None: the log has no losses.
            has_loss: None: each entry has one.
            grad_norm: None: the log has no gradient norms.
            has_grad_norm: None: each entry has one.
            lr: None: unknown, and so on.
            loss_scale: See there.
            num_tokens: As logged; what is no count (negative, NaN, `MAX_COUNT` or more) is unknown.
            reason: See there.
        """
        steps = np.asarray(step, np.int64)

        def column(values: Any, otherwise: float, dtype: type[np.generic]) -> NDArray[Any]:
            return np.full(steps.size, otherwise, dtype) if values is None else np.asarray(values, dtype)

        return cls(
            step=steps,
            place=np.asarray(place, np.int64),
            loss=column(loss, np.nan, np.float64),
            has_loss=column(has_loss, loss is not None, np.bool_),
            grad_norm=column(grad_norm, np.nan, np.float64),
            has_grad_norm=column(has_grad_norm, grad_norm is not None, np.bool_),
            lr=column(lr, np.nan, np.float64),
            loss_scale=column(loss_scale, np.nan, np.float64),
            num_tokens=column(None if num_tokens is None else _counts(num_tokens), UNCOUNTED, np.int64),
            reason=column(reason, UNKNOWN_REASON, np.uint8),
        )

    @classmethod
    def concat(cls, blocks: list[StepRecords]) -> StepRecords:
        """All blocks in one, in the order given."""
        if not blocks:
            return cls.of([], place=[])
        return cls._make(np.concatenate(column) for column in zip(*blocks, strict=True))


def _counts(values: Any) -> NDArray[np.int64]:
    """What is a count as a whole number, the rest as not counted; any shape."""
    given = np.asarray(values)
    return np.where((given >= 0) & (given < MAX_COUNT), given, UNCOUNTED).astype(np.int64)
