"""What the run reported as its loss, beside what its rows cost.

Enters: a log and its series. Leaves: notices on steps whose rows do not hold the whole loss: because what some of them
cost was not recorded, or because the loss has further terms. Invariant: a difference that comes of weighing micro-
batches alike instead of tokens is none. Memory is that of the few steps that are looked at.

Shapes: N row records of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.rows import records_of
from trimtab.analysis.series import StepSeries
from trimtab.log.columns import RowColumns
from trimtab.log.reader import Log
from trimtab.log.steps import differ, step_lines, step_sums
from trimtab.values import Event

MAX_STEPS: Final = 20
"""Steps whose rows are looked at."""

MAX_WHY: Final = 200
"""Characters told of why the losses of rows are not known."""


def on_unknown_losses(series: StepSeries, *, events: Sequence[Event]) -> list[str]:
    """Steps whose loss the rows do not hold, and what the run said about it.

    Args:
        series: A run.
        events: The events of its log.
    """
    steps = series.step[series.is_reported]
    if not steps.size:
        return []
    why = next((event.facts.get("why") for event in events if event.kind == "no_row_losses"), None)
    because = f" ({why[:MAX_WHY]})" if isinstance(why, str) and why else ""
    which = f"step {steps[0]}" if steps.size == 1 else f"{steps.size} steps, the first of them {steps[0]},"
    has, its = ("has", "its") if steps.size == 1 else ("have", "their")
    return [
        f"{which} {has} rows whose losses were not recorded{because}: {its} loss is the one that the run reported, "
        "and shares are over the rows that are known"
    ]


def on_other_losses(log: Log, *, series: StepSeries) -> list[str]:
    """Steps of which the run reported another loss than that of the rows.

    Args:
        log: An opened log.
        series: A run in it.
    """
    place = np.flatnonzero(series.differs)
    if not place.size:
        return []
    steps, loss = series.step[place], series.loss[place]
    reported = _reported(log, series=series, steps=steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.abs(np.log(np.abs(reported / loss)))
    farthest = np.argsort(-np.where(np.isnan(times), np.inf, times), kind="stable")[:MAX_STEPS]
    records = records_of(log, series=series, steps=steps[farthest].tolist())
    others = np.sort(
        [at for at in farthest if not _is_of_micros(reported[at], records.take(records.step == steps[at]))]
    )
    if not others.size:
        return []
    # Those that were not looked at are nearer to their rows: they count only where all that were are far from them.
    if others.size == farthest.size:
        others = np.arange(place.size)
    first = others[0]
    where = f"step {steps[first]}" if others.size == 1 else f"{others.size} steps, the first of them {steps[first]}"
    return [
        f"the run reported another loss than that of its rows at {where}: {reported[first]:.6g} where the rows have "
        f"{loss[first]:.6g}. What a loss has beside that of its tokens is no row's doing; rewind judges the rows"
    ]


def _reported(log: Log, *, series: StepSeries, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) what the run reported at each of `steps` (N,), which ascend and all have a step record."""
    records = log.step_columns(brief=True)
    lines = step_lines(step_sums([]), records.take(np.isin(records.step, steps)))
    counts = np.flatnonzero(lines.attempt == series.attempts_of(lines.step))
    return lines.loss[counts[np.argsort(lines.step[counts])]]


def _is_of_micros(reported: float, records: RowColumns) -> bool:
    """Whether a loss is that of a step's micro-batches weighed alike, with or without those that have no tokens.

    Their sum as well: a trainer that expects a loss over the tokens of the window does not divide a mean any further.
    """
    unit = (records.rank.astype(np.int64) << 32) + records.micro
    has_loss = records.num_tokens > 0
    _, of_unit = np.unique(unit[has_loss], return_inverse=True)
    tokens = np.bincount(of_unit, weights=records.num_tokens[has_loss])
    means = np.bincount(of_unit, weights=records.loss_sum[has_loss]) / tokens
    ways = means.sum() / np.array([means.size, np.unique(unit).size, 1])
    return not differ(np.full(ways.size, reported), ways).all()
