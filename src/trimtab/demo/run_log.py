"""What the run's log holds, as far as the demo asks it: the order of the rows, and what the guard skipped.

Enters: a run folder. Leaves: plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trimtab.log.columns import RowColumns
from trimtab.log.reader import open_log
from trimtab.values import VERDICT_REASONS


class Skip(NamedTuple):
    """One micro-batch that the guard left out: where, and why."""

    step: int
    micro: int
    reason: str


def skipped_micro_batches(run_folder: Path) -> list[Skip]:
    """The micro-batches that the guard skipped, in the order of training."""
    records = _records(run_folder)
    left_out = ~records.keep
    columns = (records.step, records.micro, records.reason)
    entries = set(zip(*(column[left_out].tolist() for column in columns), strict=True))
    return [Skip(step, micro, VERDICT_REASONS[reason]) for step, micro, reason in sorted(entries)]


def first_difference(run_folder: Path, order: Sequence[Sequence[int]], *, accumulation: int) -> str | None:
    """Where the recorded rows differ from the planned ones.

    Args:
        run_folder: A run folder.
        order: Planned rows of every micro-batch, in the order of training; a run that stopped early met the first ones.
        accumulation: Micro-batches in one optimizer step.

    Returns:
        None where every recorded micro-batch holds the planned rows, else a sentence naming the first that does not.
    """
    records = _records(run_folder)
    at = (records.step - 1) * accumulation + records.micro
    for index in range(int(at.max()) + 1 if at.size else 0):
        recorded, planned = sorted(records.row[at == index].tolist()), sorted(order[index])
        if recorded != planned:
            step, micro = divmod(index, accumulation)
            return f"micro-batch {micro} of step {step + 1} was to read rows {planned}, and the log holds {recorded}"
    return None


def _records(run_folder: Path) -> RowColumns:
    return RowColumns.concat(open_log(run_folder).row_blocks())
