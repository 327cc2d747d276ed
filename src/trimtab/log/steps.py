"""Puts row records together into step losses, and step records of all ranks into one line a step.

Enters: row blocks and step columns. Leaves: one entry for each attempt and step, in that order. Invariant: a step's
loss is the sum of loss x tokens over the sum of tokens, over every micro-batch and rank of its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import RowColumns, StepColumns
from trimtab.values import STEP_REASONS

_Scalar = TypeVar("_Scalar", bound=np.generic)


class StepSums(NamedTuple):
    """One entry an attempt and step that has row records, ascending.

    Attributes:
        attempt: (S,) int32.
        step: (S,) int64.
        loss_sum: (S,) float64, NaN and infinities as recorded.
        num_tokens: (S,) int64; 0 where no row has supervised tokens.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    num_tokens: NDArray[np.int64]


def step_sums(blocks: Iterable[RowColumns]) -> StepSums:
    """Sums the row records of each attempt and step; memory is 28 bytes a step and rank."""
    parts: list[StepSums] = []
    for block in blocks:
        if not block.num_records:
            continue
        changes = (np.diff(block.step) != 0) | (np.diff(block.attempt) != 0)
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        parts.append(_sums(block.attempt, block.step, block.loss_sum, block.num_tokens, starts))
    if not parts:
        return StepSums(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))
    attempt, step, loss_sum, num_tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((step, attempt))
    attempt, step = attempt[order], step[order]
    starts = np.flatnonzero(_is_first(attempt, step))
    return _sums(attempt, step, loss_sum[order], num_tokens[order], starts)


class StepLines(NamedTuple):
    """One line an attempt and step, ascending: what `Log.steps()` shows, before it is a table.

    A field that nobody recorded is NaN, -1 (`clipped`, `stepped`) or `len(STEP_REASONS)` (`reason`).

    Attributes:
        attempt: (S,) int32.
        step: (S,) int64.
        loss: (S,) float64; NaN without supervised tokens, and where the loss was NaN.
        has_loss: (S,) bool, tells the two apart.
        num_tokens: (S,) int64, over all ranks.
        finite: (S,) bool, False where there is a loss and it is NaN or infinite.
        grad_norm: (S,) float64.
        has_grad_norm: (S,) bool.
        clipped: (S,) int8.
        lr: (S,) float64.
        has_lr: (S,) bool.
        stepped: (S,) int8.
        reason: (S,) uint8.
        wall_s: (S,) float64.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    has_loss: NDArray[np.bool_]
    num_tokens: NDArray[np.int64]
    finite: NDArray[np.bool_]
    grad_norm: NDArray[np.float64]
    has_grad_norm: NDArray[np.bool_]
    clipped: NDArray[np.int8]
    lr: NDArray[np.float64]
    has_lr: NDArray[np.bool_]
    stepped: NDArray[np.int8]
    reason: NDArray[np.uint8]
    wall_s: NDArray[np.float64]


def step_lines(sums: StepSums, records: StepColumns) -> StepLines:
    """Row sums and step records, one line a step; the lowest rank's record speaks for its step.

    Without row records a step's loss is the one its record reports, and its tokens are those of all ranks' records.
    """
    records, rank_tokens = _one_record_a_step(records)
    attempt = np.concatenate((sums.attempt, records.attempt))
    step = np.concatenate((sums.step, records.step))
    order = np.lexsort((step, attempt))
    is_first = _is_first(attempt[order], step[order])
    line = np.empty(order.size, np.int64)
    line[order] = np.cumsum(is_first) - 1
    from_rows, from_record = line[: sums.step.size], line[sums.step.size :]
    num_lines = int(is_first.sum())

    def fill(where: NDArray[np.int64], values: NDArray[_Scalar], otherwise: float) -> NDArray[_Scalar]:
        column = np.full(num_lines, otherwise, values.dtype)
        column[where] = values
        return column

    loss = fill(from_record, records.loss, np.nan)
    num_tokens = fill(from_record, rank_tokens, 0)
    has_loss = fill(from_record, records.reason != STEP_REASONS.index("no_tokens"), False)
    with np.errstate(invalid="ignore", divide="ignore"):
        loss[from_rows] = np.where(sums.num_tokens > 0, sums.loss_sum / sums.num_tokens, np.nan)
    num_tokens[from_rows] = sums.num_tokens
    has_loss[from_rows] = sums.num_tokens > 0
    return StepLines(
        attempt=attempt[order][is_first],
        step=step[order][is_first],
        loss=loss,
        has_loss=has_loss,
        num_tokens=num_tokens,
        finite=~has_loss | np.isfinite(loss),
        grad_norm=fill(from_record, records.grad_norm, np.nan),
        has_grad_norm=fill(from_record, records.has_grad_norm, False),
        clipped=fill(from_record, records.clipped, -1),
        lr=fill(from_record, records.lr, np.nan),
        has_lr=fill(from_record, records.has_lr, False),
        stepped=fill(from_record, (records.reason == 0).astype(np.int8), -1),
        reason=fill(from_record, records.reason, len(STEP_REASONS)),
        wall_s=fill(from_record, records.wall_s, np.nan),
    )


def _one_record_a_step(records: StepColumns) -> tuple[StepColumns, NDArray[np.int64]]:
    """The lowest rank's last record of each attempt and step, and the tokens of all ranks."""
    newest_first = -np.arange(records.num_records)
    order = np.lexsort((newest_first, records.rank, records.step, records.attempt))
    ordered = records.take(order)
    of_its_rank = _is_first(ordered.attempt, ordered.step, ordered.rank)
    ordered = ordered.take(of_its_rank)
    is_first = _is_first(ordered.attempt, ordered.step)
    starts = np.flatnonzero(is_first)
    tokens = np.add.reduceat(ordered.num_tokens, starts) if starts.size else ordered.num_tokens
    return ordered.take(is_first), tokens


def _is_first(*keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Marks the first entry of each run of equal keys."""
    first = np.ones(keys[0].size, np.bool_)
    if first.size:
        first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return first


def _sums(
    attempt: NDArray[np.int32],
    step: NDArray[np.int64],
    loss_sum: NDArray[np.floating],
    num_tokens: NDArray[np.integer],
    starts: NDArray[np.int64],
) -> StepSums:
    with np.errstate(invalid="ignore"):  # +inf and -inf in one step: NaN, as it should be
        losses = np.add.reduceat(loss_sum, starts, dtype=np.float64)
    return StepSums(attempt[starts], step[starts], losses, np.add.reduceat(num_tokens, starts, dtype=np.int64))
