"""Row records become micro-batches: what a guard judges, put together again from the log.

Enters: row blocks. Leaves: one entry for each attempt, step and micro-batch, in that order. Invariant: a micro-batch's
loss is the sum over its rows on every rank; a row without supervised tokens has no loss, whatever value stands there.
Memory is that of the micro-batches, 37 bytes each, however many rows they had.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import RowColumns
from trimtab.log.folding import folded

PENDING_LIMIT: Final = 1 << 20
"""Partial sums held before those of one micro-batch are added up: a block edge and every rank make another one."""


class MicroSums(NamedTuple):
    """Micro-batches: parallel arrays (M), ascending by attempt, step and micro.

    Attributes:
        attempt: (M,) int32.
        step: (M,) int64, 1-based optimizer step.
        micro: (M,) int32, 0-based place inside the step.
        loss_sum: (M,) float64 over rows with supervised tokens, NaN and infinities as recorded.
        num_tokens: (M,) int64 supervised tokens.
        left_out: (M,) bool, whether the guard of the recorded run left it out of the update.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    micro: NDArray[np.int32]
    loss_sum: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    left_out: NDArray[np.bool_]


def micro_sums(blocks: Iterable[RowColumns]) -> MicroSums:
    """Sums the row records of each micro-batch, in whatever order they come.

    Args:
        blocks: Row records, as `Log.row_blocks` gives them.
    """
    return folded((_reduce(_as_sums(block)) for block in blocks), _fold, limit=PENDING_LIMIT)


def _as_sums(block: RowColumns) -> MicroSums:
    num_tokens = np.maximum(block.num_tokens.astype(np.int64, copy=False), 0)
    loss_sum = np.where(num_tokens > 0, block.loss_sum.astype(np.float64, copy=False), 0.0)
    return MicroSums(block.attempt, block.step, block.micro, loss_sum, num_tokens, ~block.keep)


def _fold(parts: list[MicroSums]) -> MicroSums:
    if not parts:
        return _as_sums(RowColumns.empty())
    return _reduce(MicroSums._make(np.concatenate(column) for column in zip(*parts, strict=True)))


def _reduce(sums: MicroSums) -> MicroSums:
    """One entry a micro-batch, ascending."""
    if not sums.step.size:
        return sums
    is_new, ascends = _compare_neighbours(sums)
    # Records of one rank usually ascend: then there is nothing to sort.
    if not ascends:
        order = np.lexsort((sums.micro, sums.step, sums.attempt))
        sums = MicroSums._make(column[order] for column in sums)
        is_new, _ = _compare_neighbours(sums)
    starts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
    # inf - inf is NaN on purpose: the micro-batch is not finite either way.
    with np.errstate(invalid="ignore", over="ignore"):
        loss_sum = np.add.reduceat(sums.loss_sum, starts)
    return MicroSums(
        attempt=sums.attempt[starts],
        step=sums.step[starts],
        micro=sums.micro[starts],
        loss_sum=loss_sum,
        num_tokens=np.add.reduceat(sums.num_tokens, starts),
        left_out=np.logical_or.reduceat(sums.left_out, starts),
    )


def _compare_neighbours(sums: MicroSums) -> tuple[NDArray[np.bool_], bool]:
    """(M - 1,) whether an entry is of another micro-batch than the one before it, and whether all of them ascend."""
    attempt, step, micro = (key[1:] for key in sums[:3])
    attempt_before, step_before, micro_before = (key[:-1] for key in sums[:3])
    same_attempt, same_step = attempt == attempt_before, step == step_before
    is_new = ~(same_attempt & same_step & (micro == micro_before))
    later = (step > step_before) | (same_step & (micro >= micro_before))
    return is_new, bool(np.all((attempt > attempt_before) | (same_attempt & later)))
