"""Row records become steps: one pass, reductions a block, memory bounded by the number of steps.

Enters: row blocks and step records. Leaves: one line for each attempt and step, in that order. Invariant: a step's
loss is sum(loss x tokens) / sum(tokens) over every micro-batch and rank of its attempt; a row without supervised
tokens has no loss, whatever value stands there, and a step without any has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.folding import folded
from trimtab.values import GRADIENTLESS, STEP_CODE, STEP_REASONS

PENDING_LIMIT = 1 << 18
"""Partial sums held before they are folded into one a step; 256 k x 60 bytes."""

MAX_DIFFERENCE: Final = 0.1
"""Part of a step's loss by which what the run reported may differ from it: a run that weighs its micro-batches alike,
or rounds, reports another mean of the same rows."""

MIN_DIFFERENCE: Final = 1e-3
"""Loss by which they must differ besides: rounding, where a model knows its data by heart."""

WEIGHTY_TOKENS: Final = 16
"""Supervised tokens from which the mean loss of a row says something of the row: the mean over two or three tokens is
high now and then whatever they are."""

UNKNOWN_REASON: Final = len(STEP_REASONS)
"""`StepLines.reason` where no step record says what became of the step."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class StepSums(NamedTuple):
    """Sums of row records: parallel arrays, one entry an attempt and step that has any, ascending.

    Attributes:
        attempt: (S,) int32.
        step: (S,) int64.
        loss_sum: (S,) float64 over rows with supervised tokens, NaN and infinities as recorded.
        num_tokens: (S,) int64.
        num_records: (S,) int64 row records.
        num_empty: (S,) int64 row records without supervised tokens.
        num_left_out: (S,) int64 row records whose micro-batch the guard left out of the update.
        top_loss: (S,) float64, the highest mean loss of a record of `WEIGHTY_TOKENS` or more, NaN left aside; -inf
            where there is none.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    num_records: NDArray[np.int64]
    num_empty: NDArray[np.int64]
    num_left_out: NDArray[np.int64]
    top_loss: NDArray[np.float64]


class StepLines(NamedTuple):
    """One line an attempt and step, ascending: what `Log.steps()` shows, before it is a table.

    A field that nobody recorded is NaN, -1 (`num_tokens`, `clipped`, `stepped`) or `UNKNOWN_REASON` (`reason`).

    Attributes:
        attempt: (S,) int32.
        step: (S,) int64.
        loss: (S,) float64; NaN without supervised tokens, and where the loss was NaN.
        has_loss: (S,) bool, tells the two apart.
        num_tokens: (S,) int64, over all ranks; -1 where nobody counted them.
        num_records: (S,) int64 row records.
        num_empty: (S,) int64 row records without supervised tokens.
        num_left_out: (S,) int64, as in `StepSums`.
        top_loss: (S,) float64, likewise.
        is_reported: (S,) bool, whether `loss` is what the run reported though the step has rows: these were recorded
            without what each of them cost, or do not hold all tokens that the run counted.
        differs: (S,) bool, whether the run reported another loss than that of the rows, by more than `MAX_DIFFERENCE`.
        finite: (S,) bool, False where there is a loss and it is NaN or infinite.
        grad_norm: (S,) float64, of the lowest rank that measured it, one whose norm is not finite before all others.
        has_grad_norm: (S,) bool.
        clipped: (S,) int8.
        lr: (S,) float64.
        has_lr: (S,) bool.
        stepped: (S,) int8.
        reason: (S,) uint8.
        wall_s: (S,) float64, of the slowest rank.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    has_loss: NDArray[np.bool_]
    num_tokens: NDArray[np.int64]
    num_records: NDArray[np.int64]
    num_empty: NDArray[np.int64]
    num_left_out: NDArray[np.int64]
    top_loss: NDArray[np.float64]
    is_reported: NDArray[np.bool_]
    differs: NDArray[np.bool_]
    finite: NDArray[np.bool_]
    grad_norm: NDArray[np.float64]
    has_grad_norm: NDArray[np.bool_]
    clipped: NDArray[np.int8]
    lr: NDArray[np.float64]
    has_lr: NDArray[np.bool_]
    stepped: NDArray[np.int8]
    reason: NDArray[np.uint8]
    wall_s: NDArray[np.float64]


def step_sums(blocks: Iterable[RowColumns]) -> StepSums:
    """Sums the row records of each attempt and step, in whatever order they come."""
    return folded((_sum_block(block) for block in blocks if block.num_records), _fold, limit=PENDING_LIMIT)


def step_lines(sums: StepSums, records: StepColumns) -> StepLines:
    """Row sums and step records, one line an attempt and step; the lowest rank's record speaks for its step.

    Where no rows were recorded, or rows that do not hold all tokens which the records count, the loss is the one that
    the records report: ranks report the same mean or their own, weighted by tokens both come out right. 0 tokens and
    NaN are no loss. What the guard left out is in no reported loss, so of such a step the rows that are known speak.
    """
    records = _last_of_each_rank(records)
    attempt, step, from_rows, from_record = _join(sums, records)
    num_lines = step.size

    def fill(values: NDArray[_Scalar], otherwise: float, *, where: NDArray[np.int64] = from_record) -> NDArray[_Scalar]:
        if where is from_rows is from_record:
            return values
        column = np.full(num_lines, otherwise, values.dtype)
        column[where] = values
        return column

    num_tokens = fill(sums.num_tokens, 0, where=from_rows).copy()
    num_records = fill(sums.num_records, 0, where=from_rows)
    num_left_out = fill(sums.num_left_out, 0, where=from_rows)
    loss = fill(_mean(sums.loss_sum, sums.num_tokens.astype(np.float64)), np.nan, where=from_rows)
    has_loss = num_tokens > 0
    is_reported, differs = np.zeros(num_lines, np.bool_), np.zeros(num_lines, np.bool_)

    if records.num_records:
        reported = _reported(records, from_record, num_lines=num_lines)
        comparable = has_loss & reported.has_loss & (num_left_out == 0)
        is_short = comparable & (reported.num_tokens > num_tokens)
        differs = comparable & ~is_short & differ(reported.loss, loss)
        by_record = is_short
        if not has_loss.all():
            speaks = np.bincount(from_record[records.num_tokens != 0], minlength=num_lines) > 0
            by_record = is_short | (~has_loss & (speaks | (sums.step.size == 0)))
        if by_record.any():
            for column, said in zip((loss, has_loss, num_tokens), reported, strict=True):
                column[by_record] = said[by_record]
            is_reported = by_record & has_loss & (num_records > 0)

    grad_norm, has_grad_norm = np.full(num_lines, np.nan), np.zeros(num_lines, np.bool_)
    for speaks in (records.has_grad_norm, records.has_grad_norm & ~np.isfinite(records.grad_norm)):
        grad_norm[from_record[speaks]] = records.grad_norm[speaks]
        has_grad_norm[from_record[speaks]] = True

    return StepLines(
        attempt=attempt,
        step=step,
        loss=loss,
        has_loss=has_loss,
        num_tokens=num_tokens,
        num_records=num_records,
        num_empty=fill(sums.num_empty, 0, where=from_rows),
        num_left_out=num_left_out,
        top_loss=fill(sums.top_loss, -np.inf, where=from_rows),
        is_reported=is_reported,
        differs=differs,
        finite=~has_loss | np.isfinite(loss),
        grad_norm=grad_norm,
        has_grad_norm=has_grad_norm,
        clipped=fill(records.clipped, -1),
        lr=fill(records.lr, np.nan),
        has_lr=fill(records.has_lr, False),
        stepped=fill(np.where(records.reason == UNKNOWN_REASON, -1, records.reason == 0).astype(np.int8), -1),
        reason=fill(records.reason, UNKNOWN_REASON),
        wall_s=_longest(records.wall_s, from_record, num_lines=num_lines),
    )


def _longest(wall_s: NDArray[np.float64], line: NDArray[np.int64], *, num_lines: int) -> NDArray[np.float64]:
    """The longest of each line; NaN where nobody knows any."""
    longest = np.full(num_lines, np.nan)
    np.fmax.at(longest, line, wall_s)
    return longest


def _sum_block(block: RowColumns) -> StepSums:
    tokens = block.num_tokens.astype(np.int64, copy=False)
    empty = tokens <= 0
    loss_sum = np.where(empty, 0.0, block.loss_sum.astype(np.float64, copy=False))
    top_loss = np.full(tokens.size, -np.inf)
    np.divide(loss_sum, tokens, where=tokens >= WEIGHTY_TOKENS, out=top_loss)
    return _reduce(
        StepSums(
            attempt=block.attempt,
            step=block.step,
            loss_sum=loss_sum,
            num_tokens=tokens,
            num_records=np.ones(tokens.size, np.int64),
            num_empty=empty.astype(np.int64),
            num_left_out=(~block.keep).astype(np.int64),
            top_loss=top_loss,
        )
    )


def _fold(parts: list[StepSums]) -> StepSums:
    if not parts:
        whole = np.empty(0, np.int64)
        real = np.empty(0, np.float64)
        return StepSums(np.empty(0, np.int32), whole, real, whole, whole, whole, whole, real)
    return _reduce(StepSums._make(np.concatenate(column) for column in zip(*parts, strict=True)))


def _reduce(sums: StepSums) -> StepSums:
    """One entry an attempt and step, ascending."""
    attempt, step = sums.attempt, sums.step
    same = attempt[1:] == attempt[:-1]
    # Records usually ascend: then there is nothing to sort.
    if not np.all((attempt[1:] > attempt[:-1]) | (same & (step[1:] >= step[:-1]))):
        order = np.lexsort((step, attempt))
        sums = StepSums._make(column[order] for column in sums)
    starts = np.flatnonzero(_is_first(sums.attempt, sums.step))
    if starts.size == sums.step.size:
        return sums
    # inf - inf is NaN on purpose: the step is not finite either way.
    with np.errstate(invalid="ignore", over="ignore"):
        added = [np.add.reduceat(column, starts) for column in sums[2:-1]]
        top_loss = np.fmax.reduceat(sums.top_loss, starts)
    return StepSums._make((sums.attempt[starts], sums.step[starts], *added, top_loss))


class _Reported(NamedTuple):
    """What step records say of each line (S): its loss, whether it has one, and its tokens, -1 if nobody counted."""

    loss: NDArray[np.float64]
    has_loss: NDArray[np.bool_]
    num_tokens: NDArray[np.int64]


def _reported(records: StepColumns, line: NDArray[np.int64], *, num_lines: int) -> _Reported:
    counted = np.maximum(records.num_tokens, 0)
    # -1: nobody counted, the loss stands as it is. 0 and NaN: the mean over no tokens, which is no loss.
    known = (records.num_tokens != 0) | ~np.isnan(records.loss)
    for reason in GRADIENTLESS:  # nothing was measured
        known &= records.reason != STEP_CODE[reason]
    if line.size == num_lines and np.all(line[1:] > line[:-1]):  # one record a line: nothing to add up
        return _Reported(np.where(known, records.loss, np.nan), known, np.maximum(records.num_tokens, -1))
    num_tokens = np.bincount(line, weights=counted, minlength=num_lines).astype(np.int64)
    is_uncounted = np.bincount(line[records.num_tokens < 0], minlength=num_lines) > 0
    num_tokens[is_uncounted & (num_tokens == 0)] = -1
    # Where tokens were not counted, every rank weighs alike.
    weight = np.where(records.num_tokens > 0, records.num_tokens, 1).astype(np.float64)[known]
    weights = np.bincount(line[known], weights=weight, minlength=num_lines)
    with np.errstate(invalid="ignore", over="ignore"):
        weighted = np.bincount(line[known], weights=records.loss[known] * weight, minlength=num_lines)
    return _Reported(_mean(weighted.astype(np.float64), weights.astype(np.float64)), weights > 0, num_tokens)


def differ(reported: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether what was reported is another loss; of two that are not finite never.

    Args:
        reported: (N,) losses.
        loss: (N,) what they are compared with.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        apart, bound = reported - loss, np.abs(loss)
        np.abs(apart, out=apart)
        bound *= MAX_DIFFERENCE
        near = apart <= np.maximum(bound, MIN_DIFFERENCE, out=bound)
    differ: NDArray[np.bool_] = ~near & (np.isfinite(reported) | np.isfinite(loss))
    return differ


class _Joined(NamedTuple):
    """The attempts and steps of row sums and step records (S), each once, ascending, and where each stands in them."""

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    from_rows: NDArray[np.int64]
    from_record: NDArray[np.int64]


def _join(sums: StepSums, records: StepColumns) -> _Joined:
    if np.array_equal(sums.step, records.step) and np.array_equal(sums.attempt, records.attempt):
        # A step record for every step that has rows, on one rank: most logs, and nothing to sort or to copy.
        place = np.arange(sums.step.size)
        return _Joined(sums.attempt, sums.step, place, place)
    attempt = np.concatenate((sums.attempt, records.attempt))
    step = np.concatenate((sums.step, records.step))
    order = np.lexsort((step, attempt))
    is_first = _is_first(attempt[order], step[order])
    line = np.empty(order.size, np.int64)
    line[order] = np.cumsum(is_first) - 1
    num_sums = sums.step.size
    return _Joined(attempt[order][is_first], step[order][is_first], line[:num_sums], line[num_sums:])


def _last_of_each_rank(records: StepColumns) -> StepColumns:
    """The last record of each attempt, step and rank; of one step the lowest rank comes last, and so prevails."""
    attempt, step = records.attempt, records.step
    if np.all((attempt[1:] > attempt[:-1]) | ((attempt[1:] == attempt[:-1]) & (step[1:] > step[:-1]))):
        return records
    newest_first = -np.arange(records.num_records)
    order = np.lexsort((newest_first, -records.rank.astype(np.int64), records.step, records.attempt))
    ordered = records.take(order)
    return ordered.take(_is_first(ordered.attempt, ordered.step, ordered.rank))


def _mean(sums: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over weight; NaN where there is no weight."""
    mean = np.full(sums.size, np.nan)
    np.divide(sums, weights, where=weights > 0, out=mean)
    return mean


def _is_first(*keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Marks the first entry of each run of equal keys."""
    first = np.ones(keys[0].size, np.bool_)
    if first.size:
        first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return first
