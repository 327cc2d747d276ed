"""Rows that are not finite because of another one: attention carries a NaN through all rows packed into one sequence.

Enters: the row tables of some steps, and the log. Leaves: the same tables, each row that is not finite there though it
was finite in another step marked, and behind those that never were. Invariant: of the rows that are not finite at least
one stays unmarked, and no finite row moves.

Shapes: R rows of a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.rows import StepRows, blocks_with
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.log.reader import Log


def mark_neighbours(log: Log, tables: Mapping[int, StepRows], *, series: StepSeries) -> dict[int, StepRows]:
    """Reads the log once more where more than one row of a step is not finite.

    Args:
        log: An opened log with rows.
        tables: Rows by step.
        series: The run that the steps are of.
    """
    several = [table for table in tables.values() if table.num_nonfinite > 1]
    if not several:
        return dict(tables)
    wanted = np.unique(np.concatenate([table.row[~table.finite] for table in several]))
    rows, steps = _finite_visits(log, wanted, series=series)
    marked = {table.step: _mark(table, np.unique(rows[steps != table.step])) for table in several}
    return {**tables, **marked}


def _finite_visits(
    log: Log, wanted: NDArray[np.int64], *, series: StepSeries
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `wanted`, and steps in which they were finite: of each row the first such step and the last."""
    first = np.full(wanted.size, np.iinfo(np.int64).max)
    last = np.full(wanted.size, np.iinfo(np.int64).min)
    for block in blocks_with(log, wanted):
        some = block.take((block.attempt == series.attempts_of(block.step)) & (block.num_tokens > 0))
        some = some.take(is_finite(some.loss_sum / some.num_tokens))
        place = np.searchsorted(wanted, some.row)
        np.minimum.at(first, place, some.step)
        np.maximum.at(last, place, some.step)
    seen = first <= last
    return np.tile(wanted[seen], 2), np.concatenate([first[seen], last[seen]])


def _mark(table: StepRows, finite_elsewhere: NDArray[np.int64]) -> StepRows:
    """The table with its neighbours marked, none where that would be every row that is not finite."""
    is_neighbour = ~table.finite & np.isin(table.row, finite_elsewhere)
    if np.count_nonzero(is_neighbour) == table.num_nonfinite:
        return table
    order = np.argsort(np.where(table.finite, 2, is_neighbour), kind="stable")
    return dataclasses.replace(
        table,
        row=table.row[order],
        count=table.count[order],
        loss_sum=table.loss_sum[order],
        tokens=table.tokens[order],
        rank=table.rank[order],
        finite=table.finite[order],
        left_out=table.left_out[order],
        is_neighbour=is_neighbour[order],
    )
