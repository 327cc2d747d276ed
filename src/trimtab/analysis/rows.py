"""Which rows were in a step, and which of them made its loss.

Enters: a log and the steps in question. Leaves: one `StepRows` a step, the suspicious rows first, and `RowShare`
values. Invariant: the memory taken is that of the steps in question, never that of the log.

Order of rows: those that are not finite, in the order recorded, as a guard names the first; then by share, largest
first, then by row; rows without supervised tokens last. Shapes: R distinct rows of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.series import StepSeries, is_finite
from trimtab.findings import RowShare
from trimtab.log.columns import RowColumns
from trimtab.log.reader import Log

_APART = 1_000
"""Steps between two that are looked for, from which on what lies between them is not read."""

_MAX_STRETCHES = 32
"""Stretches that are read one by one: each costs some milliseconds of every part of a log."""

LEVEL_STEPS = 20
"""Measured finite steps whose median is the run's level, as in the median rule."""

NEGLIGIBLE = 1e-3
"""Part of a step's loss that may be below 0 while shares are still given: a cross-entropy in float32 comes out a hair
below 0 where the model is certain, and must not cost the step its shares. Losses of both signs in earnest, as of a
policy gradient, are no parts of a whole: 6 and -5 would be 600 % and -500 %."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one step, the suspicious ones first.

    Attributes:
        step: The step.
        row: (R,) int64 dataset row numbers.
        count: (R,) int64 occurrences in the step.
        loss_sum: (R,) float64, over supervised tokens; NaN or infinite as recorded.
        tokens: (R,) int64 supervised tokens.
        rank: (R,) int32, the lowest that trained on the row.
        finite: (R,) bool, whether float32 can hold the row's mean loss; True without supervised tokens.
        left_out: (R,) bool, whether it was in a micro-batch that the guard left out of the update.
        is_neighbour: (R,) bool, whether it is not finite though it was in another step, unlike another row of this
            one; False until `trimtab.analysis.neighbours` looked.
        total: Sum of the finite loss sums.
        shares_known: Whether the finite loss sums are parts of a whole: they add up to more than 0, and at most
            NEGLIGIBLE of that is below 0.
    """

    step: int
    row: NDArray[np.int64]
    count: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    tokens: NDArray[np.int64]
    rank: NDArray[np.int32]
    finite: NDArray[np.bool_]
    left_out: NDArray[np.bool_]
    is_neighbour: NDArray[np.bool_]
    total: float
    shares_known: bool

    @property
    def num_nonfinite(self) -> int:
        """How many rows with supervised tokens are not finite; they stand first."""
        return int(np.count_nonzero(~self.finite))

    @property
    def num_empty(self) -> int:
        """How many rows have no supervised tokens; they stand last."""
        return int(np.count_nonzero(self.tokens <= 0))

    def share(self, index: int) -> float | None:
        """Part of the step's loss that the row at `index` carries, 0..1.

        0.0 for a row that is not finite or has no tokens; None where the step's shares are not known.
        """
        if self.tokens[index] <= 0 or not self.finite[index]:
            return 0.0
        if not self.shares_known:
            return None
        return min(1.0, max(0.0, float(self.loss_sum[index]) / self.total))


def gather_rows(log: Log, *, series: StepSeries, steps: Iterable[int]) -> dict[int, StepRows]:
    """Reads the rows of some steps in one pass over the part of the log that holds them.

    Args:
        log: An opened log with rows.
        series: The run; says which attempt counts for a step.
        steps: Steps in question.

    Returns:
        Rows by step; a step without row records is absent.
    """
    records = records_of(log, series=series, steps=steps)
    return {step: _table(records.take(records.step == step), step=step) for step in np.unique(records.step).tolist()}


def records_of(log: Log, *, series: StepSeries, steps: Iterable[int]) -> RowColumns:
    """The row records of some steps, of the attempt that counts for each; for the arguments see `gather_rows`."""
    wanted = np.unique(np.fromiter(steps, np.int64))
    if not wanted.size:
        return RowColumns.empty()
    # Each stretch by itself: between two steps that lie apart there may be most of a log.
    gaps = np.diff(wanted)
    widest = np.argsort(-gaps, kind="stable")[: _MAX_STRETCHES - 1]
    stretches = np.split(wanted, np.sort(widest[gaps[widest] > _APART]) + 1)
    parts = [
        block.take(_among(block.step, stretch))
        for stretch in stretches
        for block in log.row_blocks(first_step=int(stretch[0]), last_step=int(stretch[-1]))
    ]
    records = RowColumns.concat(parts)
    return records.take(records.attempt == series.attempts_of(records.step))


def describe_rows(log: Log, table: StepRows, *, series: StepSeries, top: int) -> tuple[RowShare, ...]:
    """The first `top` rows of a step, each with its excess over what is usual for it.

    Usual is the row's mean loss per token over its other steps in the run, else the median of the 20 measured finite
    steps before this one. One more pass over the log finds the former.
    """
    usual = _usual_losses(log, table.row[:top], series=series, step=table.step)
    level = _level(series, table.step)
    ids = _ids_by_row(log, table.row[:top])
    described = []
    for index in range(min(top, table.row.size)):
        row, tokens = int(table.row[index]), int(table.tokens[index])
        loss = float(table.loss_sum[index]) / tokens if tokens > 0 else None
        expected = usual.get(row, level)
        excess = None
        if loss is not None and table.finite[index] and expected is not None:
            excess = loss - expected
        table_row, name = ids.get(row, (None, None))
        described.append(
            RowShare(
                row=row,
                count=int(table.count[index]),
                loss=loss,
                tokens=tokens,
                share=table.share(index),
                excess=excess,
                rank=int(table.rank[index]),
                name=name,
                table_row=table_row,
            )
        )
    return tuple(described)


def _table(records: RowColumns, *, step: int) -> StepRows:
    row, begins, index = np.unique(records.row, return_index=True, return_inverse=True)
    supervised = records.num_tokens > 0
    tokens = np.zeros(row.size, np.int64)
    np.add.at(tokens, index, np.where(supervised, records.num_tokens, 0))
    loss_sum = np.zeros(row.size)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(loss_sum, index, np.where(supervised, records.loss_sum, 0.0))
    rank = np.full(row.size, np.iinfo(np.int32).max, np.int32)
    np.minimum.at(rank, index, records.rank)
    count = np.bincount(index, minlength=row.size)
    left_out = np.bincount(index, weights=~records.keep, minlength=row.size) > 0

    finite = is_finite(loss_sum / np.maximum(tokens, 1))
    below = -float(np.minimum(loss_sum[finite], 0.0).sum())
    total = float(loss_sum[finite].sum())
    order = np.lexsort((np.where(finite, row, begins), -np.where(finite, loss_sum, 0.0), finite, tokens <= 0))
    return StepRows(
        step=step,
        row=row[order],
        count=count[order],
        loss_sum=loss_sum[order],
        tokens=tokens[order],
        rank=rank[order],
        finite=finite[order],
        left_out=left_out[order],
        is_neighbour=np.zeros(row.size, np.bool_),
        total=total,
        shares_known=total > 0 and below <= NEGLIGIBLE * total,
    )


def _usual_losses(log: Log, rows: NDArray[np.int64], *, series: StepSeries, step: int) -> dict[int, float]:
    """Mean loss per token of each row over its other steps; a row without another finite occurrence is absent."""
    wanted = np.unique(rows)
    loss_sum, tokens = np.zeros(wanted.size), np.zeros(wanted.size, np.int64)
    for block in blocks_with(log, wanted):
        counts = (block.attempt == series.attempts_of(block.step)) & (block.step != step)
        some = block.take(counts & (block.num_tokens > 0))
        some = some.take(is_finite(some.loss_sum / some.num_tokens))
        index = np.searchsorted(wanted, some.row)
        np.add.at(loss_sum, index, some.loss_sum)
        np.add.at(tokens, index, some.num_tokens)
    return {int(row): float(total / num) for row, total, num in zip(wanted, loss_sum, tokens, strict=True) if num > 0}


def _ids_by_row(log: Log, rows: NDArray[np.int64]) -> dict[int, tuple[int | None, str | None]]:
    """Row of the table underneath and the user's own id of each row of which the log knows more than its number."""
    ids = log.id_columns()
    some = _among(ids.row, np.unique(rows)) if rows.size else np.zeros(ids.row.size, np.bool_)
    known = zip(ids.row[some].tolist(), ids.table_row[some].tolist(), ids.name[some].tolist(), strict=True)
    return {row: (table_row if table_row >= 0 else None, name) for row, table_row, name in known}


def blocks_with(log: Log, rows: NDArray[np.int64]) -> Iterator[RowColumns]:
    """The records of some rows, which ascend, block by block; superseded attempts are among them."""
    for block in log.row_blocks(rows=rows):
        present = _among(block.row, rows)
        if present.any():
            yield block.take(present)


def _level(series: StepSeries, step: int) -> float | None:
    """Median loss of the measured finite steps before `step`; None where there are none."""
    before = series.loss[: int(np.searchsorted(series.step, step))]
    usable = before[is_finite(before)][-LEVEL_STEPS:]
    return float(np.median(usable)) if usable.size else None


def _among(values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value is one of the ascending `wanted`; cheaper than `numpy.isin`, which sorts the values."""
    index = np.minimum(np.searchsorted(wanted, values), wanted.size - 1)
    present: NDArray[np.bool_] = wanted[index] == values
    return present
