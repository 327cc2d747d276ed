"""What the run's log holds, as far as the demo asks it: the order of the rows, and what the guard skipped.

Enters: a run folder, also one that is still being written. Leaves: plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trimtab.log.columns import RowColumns
from trimtab.log.reader import open_log
from trimtab.values import VERDICT_REASONS


class Skip(NamedTuple):
    """One micro-batch that the guard left out: where, its mean loss over supervised tokens, and why."""

    step: int
    micro: int
    loss: float
    reason: str


def skipped_micro_batches(run_folder: Path, *, after_step: int = 0) -> list[Skip]:
    """The micro-batches that the guard skipped, in the order of training.

    Args:
        run_folder: A run folder.
        after_step: Only later steps.
    """
    records = _records(run_folder, first_step=after_step + 1)
    left_out = ~records.keep & (records.step > after_step)
    skips = []
    for step, micro in sorted(set(zip(records.step[left_out].tolist(), records.micro[left_out].tolist(), strict=True))):
        here = (records.step == step) & (records.micro == micro)
        loss = float(records.loss_sum[here].sum(dtype=np.float64) / records.num_tokens[here].sum())
        skips.append(Skip(step, micro, loss, VERDICT_REASONS[int(records.reason[here][0])]))
    return skips


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


def _records(run_folder: Path, *, first_step: int | None = None) -> RowColumns:
    return RowColumns.concat(open_log(run_folder).row_blocks(first_step=first_step))
