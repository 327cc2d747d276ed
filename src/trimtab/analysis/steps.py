"""Steps of a log become one series: of what was trained twice, the later attempt counts.

    log.steps.step_sums, step_lines -> superseded attempts left out -> StepSeries

Invariant: each step of the result comes from exactly one attempt, the last one that reached it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.series import UNKNOWN_REASON, StepSeries
from trimtab.log.reader import Log
from trimtab.log.steps import StepLines, step_lines, step_sums
from trimtab.values import STEP_REASONS

NEVER = np.iinfo(np.int64).max
"""A cut that no step reaches: no later attempt went over anything."""


class StepReading(NamedTuple):
    """What one pass over a log gives.

    Attributes:
        series: The steps that count.
        num_superseded: Steps left out because a later attempt of the run went over them again.
        first_superseded: First of them; None if there are none.
        last_superseded: Last of them; None likewise.
    """

    series: StepSeries
    num_superseded: int
    first_superseded: int | None
    last_superseded: int | None


def read_steps(log: Log, *, progress: Callable[[int], None] | None = None) -> StepReading:
    """Reads every row record and step record once and reduces them to steps.

    Args:
        log: An opened log.
        progress: Called now and then with the bytes read so far.

    Returns:
        The series and what was left out of it; an empty series for a log without steps.
    """
    lines = step_lines(step_sums(log.row_blocks(progress=progress)), log.step_columns())
    kept = _not_superseded(lines)
    order = np.flatnonzero(kept)[np.argsort(lines.step[kept], kind="stable")]
    gone = lines.step[~kept]
    return StepReading(
        series=StepSeries(
            step=lines.step[order],
            attempt=lines.attempt[order],
            loss=lines.loss[order],
            tokens=lines.num_tokens[order],
            measured=lines.has_loss[order],
            grad_norm=lines.grad_norm[order],
            has_grad_norm=lines.has_grad_norm[order],
            reason=np.where(lines.reason == len(STEP_REASONS), UNKNOWN_REASON, lines.reason.astype(np.int8))[order],
            num_records=lines.num_records[order],
            num_empty=lines.num_empty[order],
        ),
        num_superseded=gone.size,
        first_superseded=int(gone.min()) if gone.size else None,
        last_superseded=int(gone.max()) if gone.size else None,
    )


def _not_superseded(lines: StepLines) -> NDArray[np.bool_]:
    """Marks the steps that no later attempt went over again: those before the first step of every later one."""
    # Lines ascend by attempt, and by step inside one.
    starts = np.flatnonzero(np.diff(lines.attempt, prepend=lines.attempt[:1] - 1))
    first = lines.step[starts]
    cuts = np.full(first.size, NEVER)
    cuts[:-1] = np.minimum.accumulate(first[::-1])[::-1][1:]
    cut = np.repeat(cuts, np.diff(starts, append=lines.step.size))
    kept: NDArray[np.bool_] = (lines.step < cut) | (cut == NEVER)
    return kept
