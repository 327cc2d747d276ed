"""One row through a run: where it occurred, and what it cost each time.

Enters: a log and a row. Leaves: a `RowHistory`. Invariant: of steps that were trained twice the attempt that counts for
the step counts for the row; memory is that of the row's own occurrences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.rows import blocks_with
from trimtab.analysis.series import is_finite
from trimtab.errors import LogError
from trimtab.log.columns import RowColumns
from trimtab.log.reader import Log
from trimtab.values import json_number

MAX_VISITS: Final = 50
"""Occurrences listed: the last ones. All of them are counted, and the best and worst are told."""

MAX_QUOTED: Final = 200
"""Characters of a name quoted in an error."""

_MAX_DIGITS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One occurrence of a row.

    Attributes:
        step: The step.
        loss: Its mean loss over supervised tokens; None without any.
        tokens: Its supervised tokens.
        left_out: Whether the guard left its micro-batch out of the update.
    """

    step: int
    loss: float | None
    tokens: int
    left_out: bool

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --row --json`."""
        return {"step": self.step, "loss": json_number(self.loss), "tokens": self.tokens, "left_out": self.left_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHistory:
    """One row through a run.

    Attributes:
        row: Dataset row number.
        name: The user's own id of it; None where the log holds none.
        table_row: Its row in the table that the dataset is a selection of; None where nobody knows.
        count: How often it occurred; of a row that packing has split, each piece counts.
        num_steps: In how many steps.
        mean_loss: Over the supervised tokens of all occurrences that are finite; None without any.
        best: The finite occurrence with the lowest loss; None likewise.
        worst: One that is not finite, else the one with the highest loss; None where no occurrence has a loss.
        visits: The last occurrences, by step.
        visits_left_out: How many are not among them.
    """

    row: int
    name: str | None
    table_row: int | None
    count: int
    num_steps: int
    mean_loss: float | None
    best: Visit | None
    worst: Visit | None
    visits: tuple[Visit, ...]
    visits_left_out: int

    def to_dict(self) -> dict[str, Any]:
        """The part of `rewind --row --json` that the log alone gives; strict JSON."""
        return {
            "row": self.row,
            "name": self.name,
            "table_row": self.table_row,
            "count": self.count,
            "num_steps": self.num_steps,
            "mean_loss": json_number(self.mean_loss),
            "best": self.best.to_dict() if self.best is not None else None,
            "worst": self.worst.to_dict() if self.worst is not None else None,
            "visits": [visit.to_dict() for visit in self.visits],
            "visits_left_out": self.visits_left_out,
        }


def find_row(log: Log, name: str) -> int:
    """The number of a row that a user names by it, or by an id of their own.

    Raises:
        LogError: It is no number, and no row of the log has it as its id, or several have.
    """
    ids = log.id_columns()
    named = ids.row[ids.name == name]
    if named.size > 1:
        raise LogError(f"{log.path}: {named.size} rows have the id {_quoted(name)}: name one by its number.")
    if named.size:
        return int(named[0])
    digits = name.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
        return int(name)
    raise LogError(f"{log.path}: no row has the id {_quoted(name)}, and it is no row number. Name a row by its number.")


def _quoted(name: str) -> str:
    """The name as it may stand in an error, however long somebody made it."""
    return repr(name) if len(name) <= MAX_QUOTED else repr(name[:MAX_QUOTED]) + "..."


def row_history(log: Log, *, row: int) -> RowHistory:
    """Where a row occurred in a run; a row that never did has a count of 0.

    Args:
        log: An opened log.
        row: Dataset row number.

    Raises:
        LogError: The log cannot be read.
    """
    runs = read_runs(log)
    records = RowColumns.concat(
        block.take(np.any([block.attempt == run.series.attempts_of(block.step) for run in runs], axis=0))
        for block in blocks_with(log, np.array([row], np.int64))
    )
    # Where a run of its own begins in the log, steps begin anew.
    run_number = np.searchsorted(np.array(log.restarts(), np.int32), records.attempt, side="right")
    num_steps = len(set(zip(run_number.tolist(), records.step.tolist(), strict=True)))
    records = records.take(np.lexsort((records.micro, records.step, run_number)))
    loss = np.where(records.num_tokens > 0, records.loss_sum / np.maximum(records.num_tokens, 1), np.nan)
    measured = np.flatnonzero(records.num_tokens > 0)
    finite = measured[is_finite(loss[measured])]
    broken = np.setdiff1d(measured, finite)
    worst = broken[0] if broken.size else finite[np.argmax(loss[finite])] if finite.size else None
    first_visit = max(0, records.num_records - MAX_VISITS)
    name, table_row = _identity(log, row)
    tokens = int(records.num_tokens[finite].sum(dtype=np.int64))
    return RowHistory(
        row=row,
        name=name,
        table_row=table_row,
        count=records.num_records,
        num_steps=num_steps,
        mean_loss=float(records.loss_sum[finite].sum(dtype=np.float64)) / tokens if tokens else None,
        best=_visit(records, int(finite[np.argmin(loss[finite])])) if finite.size else None,
        worst=_visit(records, int(worst)) if worst is not None else None,
        visits=tuple(_visit(records, at) for at in range(first_visit, records.num_records)),
        visits_left_out=first_visit,
    )


def _visit(records: RowColumns, at: int) -> Visit:
    tokens = int(records.num_tokens[at])
    return Visit(
        step=int(records.step[at]),
        loss=float(records.loss_sum[at]) / tokens if tokens > 0 else None,
        tokens=max(0, tokens),
        left_out=not records.keep[at],
    )


def _identity(log: Log, row: int) -> tuple[str | None, int | None]:
    ids = log.id_columns()
    place = int(np.searchsorted(ids.row, row))
    if place == ids.row.size or ids.row[place] != row:
        return None, None
    table_row = int(ids.table_row[place])
    return ids.name[place], table_row if table_row >= 0 else None
