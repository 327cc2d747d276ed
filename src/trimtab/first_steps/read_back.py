"""Reads back what a rank recorded around a checkpoint, once, before training goes on.

Enters: a run folder, and the step that comes next. Leaves: `Around`. Invariants: of the rows at most `MAX_ROWS` on
either side are held, those nearest to the checkpoint; of a log that is too large nothing is read, and that is said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from trimtab.first_steps.as_numbers import step_of_numbers
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.run_source import RunSource
from trimtab.notices import warn
from trimtab.resume.around import Around, RowsAround
from trimtab.resume.breaks import SeenStep
from trimtab.resume.row_order import epoch_begins

MAX_ROWS: Final = 1 << 20
"""Rows before the checkpoint that are read back, 8 MiB of them; and as many after it."""

MAX_LOG_BYTES: Final = 2 << 30
"""A rank's log above this size is not read before training: a gigabyte takes about a second."""

_STEPS_AT_FIRST: Final = 64


def read_log(folder: Path, around: Around, *, num_rows: int | None, num_ranks: int) -> Around:
    """Reads back what a rank recorded around a checkpoint.

    Args:
        folder: The run folder.
        around: What the state tells, and whose records are read.
        num_rows: Rows of the dataset; None where nobody knows.
        num_ranks: Ranks that train now: where others trained before, each had other rows.

    Returns:
        The same, with what was recorded.

    Raises:
        LogError: The log cannot be read.
    """
    step, before = around.step, around.before
    if before.attempt is None:
        return replace(around, no_rows_because="the run that saved was not recorded")
    source = RunSource(folder, rank=around.rank)
    if source.size_bytes > MAX_LOG_BYTES:
        warn(
            "resume",
            f"The log of rank {around.rank} in {folder} has {source.size_bytes >> 20} MiB, more than is read before "
            f"training ({MAX_LOG_BYTES >> 20} MiB): the rows after the resume are not compared with those before.",
        )
        return replace(around, no_rows_because="the log is too large to be read before training")
    steps = source.steps_between(step - 1, step + _STEPS_AT_FIRST)
    after = steps.take((steps.step >= step) & (steps.attempt == before.attempt))
    around = replace(around, recorded=_steps_of(after))
    if num_ranks != before.num_ranks:
        return replace(around, no_rows_because=f"{before.num_ranks} ranks trained before, and {num_ranks} do now")
    # The step's record is written behind its rows: where it is, they are.
    is_whole = bool(np.any((steps.step == step - 1) & (steps.attempt <= before.attempt)))
    rows = _rows_around(source, step=step, attempt=before.attempt, num_ranks=num_ranks)
    return replace(around, rows=replace(rows, to_checkpoint=is_whole, num_rows=num_rows))


def _steps_of(columns: StepColumns) -> tuple[SeenStep, ...]:
    return tuple(
        step_of_numbers(step, loss, lr if has_lr else None, reason)
        for step, loss, lr, has_lr, reason in zip(
            columns.step.tolist(),
            columns.loss.tolist(),
            columns.lr.tolist(),
            columns.has_lr.tolist(),
            columns.reason.tolist(),
            strict=True,
        )
    )


def _rows_around(source: RunSource, *, step: int, attempt: int, num_ranks: int) -> RowsAround:
    """The rows of the attempt that saved, and before its own beginning those of the attempts before it."""
    due = _rows_between(source, step, step + _STEPS_AT_FIRST)
    due = due.take(due.attempt == attempt)
    first, before = step, RowColumns.empty()
    reach = _STEPS_AT_FIRST
    while first > 1:  # twice as far back each time: how many rows a step has is not known before
        first = max(1, step - reach)
        before = _last_attempts(_rows_between(source, first, step - 1), attempt=attempt)
        if before.num_records >= MAX_ROWS or first == 1 or not before.num_records:
            break
        reach = max(2 * reach, reach * MAX_ROWS // (2 * before.num_records))
    is_cut = before.num_records > MAX_ROWS
    before = before.take(np.arange(before.num_records)[-MAX_ROWS:])
    whole = first == 1 and not is_cut and bool(before.num_records) and int(before.step[0]) == 1
    return RowsAround(
        before=before.row,
        before_steps=before.step,
        after=due.row[:MAX_ROWS],
        after_steps=due.step[:MAX_ROWS],
        from_start=whole,
        epochs=epoch_begins(before.row, num_ranks=num_ranks) if whole else (0,),
        num_ranks=num_ranks,
    )


def _rows_between(source: RunSource, first: int, last: int) -> RowColumns:
    """The row records of some steps, in the order recorded; of each block what belongs to them."""
    found = RowColumns.concat(
        block.take((block.step >= first) & (block.step <= last))
        for block in source.row_blocks(first_step=first, last_step=last)
    )
    return found.take(np.lexsort((found.micro, found.step, found.attempt)))


def _last_attempts(rows: RowColumns, *, attempt: int) -> RowColumns:
    """Of each step the records of the last attempt, up to the one that saved, that reached it; ascending steps."""
    rows = rows.take(rows.attempt <= attempt)
    if not rows.num_records:
        return rows
    steps, place = np.unique(rows.step, return_inverse=True)
    newest = np.zeros(steps.size, np.int32)
    np.maximum.at(newest, place, rows.attempt)
    rows = rows.take(rows.attempt == newest[place])
    return rows.take(np.argsort(rows.step, kind="stable"))
