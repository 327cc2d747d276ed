"""The value on which spikes are looked for: one run as one series of steps.

Enters: nothing but arrays. Leaves: `StepSeries`, parallel arrays in ascending step order, superseded attempts left
out. Invariant: `loss` is NaN both where nothing was measured and where NaN was measured; `measured` tells them apart.

Shapes: S steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_INT64 = np.iinfo(np.int64)


class StepSeries(NamedTuple):
    """One run, step by step, in ascending order; each step stands once.

    Attributes:
        step: (S,) int64 optimizer steps.
        attempt: (S,) int32, the attempt whose records count for the step.
        loss: (S,) float64, sum of loss over supervised tokens, over every micro-batch and rank; NaN where unmeasured.
        tokens: (S,) int64 supervised tokens.
        measured: (S,) bool, whether the step has a loss: a step without supervised tokens has none.
        grad_norm: (S,) float64 gradient norm before clipping; NaN where not measured, and where it was NaN.
        has_grad_norm: (S,) bool, tells the two apart.
        reason: (S,) uint8 index into `trimtab.values.STEP_REASONS`, or `trimtab.log.steps.UNKNOWN_REASON`.
        num_records: (S,) int64 row records of the step.
        num_empty: (S,) int64 row records without supervised tokens.
        num_left_out: (S,) int64 row records whose micro-batch the guard left out of the update.
        top_loss: (S,) float64, the highest mean loss of a row with tokens enough to say something of the row
            (`trimtab.log.steps.WEIGHTY_TOKENS`); -inf where there is none.
        is_reported: (S,) bool, whether `loss` is what the run reported though the step has rows: these do not hold all
            of its tokens.
        differs: (S,) bool, whether the run reported a loss far from that of the rows.
    """

    step: NDArray[np.int64]
    attempt: NDArray[np.int32]
    loss: NDArray[np.float64]
    tokens: NDArray[np.int64]
    measured: NDArray[np.bool_]
    grad_norm: NDArray[np.float64]
    has_grad_norm: NDArray[np.bool_]
    reason: NDArray[np.uint8]
    num_records: NDArray[np.int64]
    num_empty: NDArray[np.int64]
    num_left_out: NDArray[np.int64]
    top_loss: NDArray[np.float64]
    is_reported: NDArray[np.bool_]
    differs: NDArray[np.bool_]

    @property
    def num_steps(self) -> int:
        """Number of steps (S); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    @property
    def is_artefact(self) -> NDArray[np.bool_]:
        """(S,) bool, steps whose loss is exactly 0 with a gradient norm that is not finite.

        That is what a trainer logs which left a broken step out, or put zeros in the place of what was not finite: no
        loss was measured, least of all a good one.
        """
        is_zero: NDArray[np.bool_] = self.measured & (self.loss == 0.0)
        return is_zero & self.has_grad_norm & ~is_finite(self.grad_norm)

    def place(self, step: int) -> int | None:
        """Index of `step` in the arrays; None where the series does not hold it."""
        if not _INT64.min <= step <= _INT64.max:
            return None
        index = int(np.searchsorted(self.step, step))
        return index if index < self.step.size and int(self.step[index]) == step else None

    def attempts_of(self, steps: NDArray[np.int64]) -> NDArray[np.int32]:
        """The attempt that counts for each of `steps` (N,); 0 for a step that the series does not hold."""
        index = np.minimum(np.searchsorted(self.step, steps), self.step.size - 1)
        return np.where(self.step[index] == steps, self.attempt[index], np.int32(0))


def is_finite(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each of `values` is a number that float32 can hold: the rules judge float32, where 1e39 is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite: NDArray[np.bool_] = np.isfinite(values.astype(np.float32))
    return finite
