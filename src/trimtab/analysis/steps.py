"""Row records become steps: one pass over the log, reductions a block, memory bounded by the number of steps.

    row_blocks() -> sums a (attempt, step) -> superseded attempts left out -> StepSeries
    step_columns() --------------------------------^

Step loss = sum(loss x tokens) / sum(tokens) over every micro-batch and rank. A row without supervised tokens has no
loss, whatever value stands there; a step without any is not measured. Invariant: each step of the result comes from
exactly one attempt, the last one that reached it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.series import UNKNOWN_REASON, StepSeries
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.reader import Log
from trimtab.values import STEP_REASONS

NOTHING_MEASURED = (STEP_REASONS.index("all_skipped"), STEP_REASONS.index("no_tokens"))
"""Reasons under which a step record without rows carries no loss that was measured."""

PENDING_LIMIT = 1 << 18
"""Partial sums held before they are folded into one a step; 256 k x 44 bytes."""


NEVER = np.iinfo(np.int64).max
"""A cut that no step reaches: no later attempt went over anything."""


class StepReading(NamedTuple):
    """What one pass over a log gives.

    Attributes:
        series: The steps that count.
        num_superseded: Steps left out because a later attempt of the run went over them again.
        first_superseded: First of them; None if there are none.
        last_superseded: Last of them; None likewise.
    """

    series: StepSeries
    num_superseded: int
    first_superseded: int | None
    last_superseded: int | None


_Integer = TypeVar("_Integer", np.int32, np.int64)


class _Sums(NamedTuple):
    """Partial sums: parallel arrays, one entry an (attempt, step); the same pair may stand more than once."""

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    tokens: NDArray[np.int64]
    records: NDArray[np.int64]
    empty: NDArray[np.int64]


class _Keyed(Protocol):
    """Columns that name an attempt and a step."""

    @property
    def attempt(self) -> NDArray[np.int32]: ...
    @property
    def step(self) -> NDArray[np.int64]: ...


def read_steps(log: Log, *, progress: Callable[[int], None] | None = None) -> StepReading:
    """Reads every row record and step record once and reduces them to steps.

    Args:
        log: An opened log.
        progress: Called now and then with the bytes read so far.

    Returns:
        The series and what was left out of it; an empty series for a log without steps.
    """
    sums = _sum_rows(log, progress=progress)
    records = log.step_columns()
    attempts, cuts = _first_later_steps(sums, records)
    kept_sums, kept_records = (_before(columns, attempts=attempts, cuts=cuts) for columns in (sums, records))
    series = _join(
        _Sums._make(column[kept_sums] for column in sums),
        StepColumns._make(column[kept_records] for column in records),
        has_rows=log.has_rows,
    )
    gone = np.unique(np.concatenate([_pairs(sums)[~kept_sums], _pairs(records)[~kept_records]]), axis=0)
    return StepReading(
        series=series,
        num_superseded=len(gone),
        first_superseded=int(gone[:, 1].min()) if len(gone) else None,
        last_superseded=int(gone[:, 1].max()) if len(gone) else None,
    )


def _sum_rows(log: Log, *, progress: Callable[[int], None] | None) -> _Sums:
    pending: list[_Sums] = []
    num_pending, limit = 0, PENDING_LIMIT
    for block in log.row_blocks(progress=progress):
        if not block.num_records:
            continue
        part = _sum_block(block)
        pending.append(part)
        num_pending += part.step.size
        if num_pending > limit:
            pending = [_fold(pending)]
            num_pending = pending[0].step.size
            # The folded part is one entry a step; folding again before it doubled would cost quadratic time.
            limit = max(PENDING_LIMIT, 2 * num_pending)
    return _fold(pending)


def _sum_block(block: RowColumns) -> _Sums:
    starts, order = _groups(block.attempt, block.step)
    tokens = block.num_tokens.astype(np.int64, copy=False)
    # Whatever value stands where no token was supervised, it is no loss.
    loss_sum = np.where(tokens > 0, block.loss_sum.astype(np.float64, copy=False), 0.0)
    return _reduce(
        _Sums(
            block.attempt,
            block.step,
            loss_sum,
            tokens,
            np.ones(tokens.size, np.int64),
            (tokens <= 0).astype(np.int64),
        ),
        starts=starts,
        order=order,
    )


def _fold(parts: list[_Sums]) -> _Sums:
    if not parts:
        whole = np.empty(0, np.int64)
        return _Sums(np.empty(0, np.int32), whole, np.empty(0, np.float64), whole, whole, whole)
    whole_sums = _Sums._make(np.concatenate(column) for column in zip(*parts, strict=True))
    starts, order = _groups(whole_sums.attempt, whole_sums.step)
    return _reduce(whole_sums, starts=starts, order=order)


def _groups(attempt: NDArray[np.int32], step: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Where each (attempt, step) starts, and the order that brings equal pairs together (None: they are already)."""
    order = None
    same = attempt[1:] == attempt[:-1]
    # Records usually ascend: then there is nothing to sort.
    if not np.all((attempt[1:] > attempt[:-1]) | (same & (step[1:] >= step[:-1]))):
        order = np.lexsort((step, attempt))
        attempt, step = attempt[order], step[order]
    changes = (attempt[1:] != attempt[:-1]) | (step[1:] != step[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1]), order


def _reduce(sums: _Sums, *, starts: NDArray[np.int64], order: NDArray[np.int64] | None) -> _Sums:
    if order is not None:
        sums = _Sums._make(column[order] for column in sums)
    # inf - inf is NaN on purpose: the step is not finite either way.
    with np.errstate(invalid="ignore", over="ignore"):
        return _Sums(
            sums.attempt[starts],
            sums.step[starts],
            *(np.add.reduceat(column, starts) for column in sums[2:]),
        )


def _first_later_steps(*keyed: _Keyed) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The attempts, ascending, and the first step that any later one went over: from there on they do not count."""
    attempt = np.concatenate([columns.attempt for columns in keyed])
    attempts = _distinct(attempt)
    index = np.searchsorted(attempts, attempt)
    first = np.full(attempts.size, NEVER)
    np.minimum.at(first, index, np.concatenate([columns.step for columns in keyed]))
    cuts = np.full(attempts.size, NEVER)
    cuts[:-1] = np.minimum.accumulate(first[::-1])[::-1][1:]
    return attempts, cuts


def _before(columns: _Keyed, *, attempts: NDArray[np.int32], cuts: NDArray[np.int64]) -> NDArray[np.bool_]:
    cut = cuts[np.searchsorted(attempts, columns.attempt)]
    kept: NDArray[np.bool_] = (columns.step < cut) | (cut == NEVER)
    return kept


def _distinct(values: NDArray[_Integer]) -> NDArray[_Integer]:
    """Each value once, ascending. `numpy.unique` hashes integers; sorting what is nearly sorted takes a tenth of it."""
    ordered = np.sort(values, kind="stable")
    return ordered[np.flatnonzero(np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]]))]


def _pairs(columns: _Keyed) -> NDArray[np.int64]:
    return np.stack([columns.attempt.astype(np.int64), columns.step], axis=1)


def _join(sums: _Sums, records: StepColumns, *, has_rows: bool) -> StepSeries:
    step = _distinct(np.concatenate([sums.step, records.step]))
    size = step.size
    attempt = np.zeros(size, np.int32)
    loss = np.full(size, np.nan)
    tokens, num_records, num_empty = (np.zeros(size, np.int64) for _ in range(3))
    measured, has_grad_norm = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    grad_norm = np.full(size, np.nan)
    reason = np.full(size, UNKNOWN_REASON, np.int8)

    at = np.searchsorted(step, sums.step)
    attempt[at], tokens[at], num_records[at], num_empty[at] = sums.attempt, sums.tokens, sums.records, sums.empty
    measured[at] = sums.tokens > 0
    loss[at] = np.divide(sums.loss_sum, sums.tokens, where=sums.tokens > 0, out=np.full(sums.step.size, np.nan))

    # The lowest rank that measured speaks for the step, a rank whose norm is not finite before all others.
    order = np.lexsort((-records.rank.astype(np.int64), records.step))
    ordered = StepColumns._make(column[order] for column in records)
    at = np.searchsorted(step, ordered.step)
    attempt[at], reason[at] = ordered.attempt, ordered.reason
    for speaks in (ordered.has_grad_norm, ordered.has_grad_norm & ~np.isfinite(ordered.grad_norm)):
        grad_norm[at[speaks]] = ordered.grad_norm[speaks]
        has_grad_norm[at[speaks]] = True

    # A log without rows, or a step whose rows are known and their losses are not: the step record speaks.
    record_tokens = np.bincount(at, weights=ordered.num_tokens, minlength=size).astype(np.int64)
    by_record = (tokens == 0) & ((record_tokens > 0) if has_rows else np.ones(size, np.bool_))
    if by_record.any():
        known = by_record[at] & ~np.isin(ordered.reason, NOTHING_MEASURED)
        # Ranks report the same mean, or their own: weighted by tokens both come out right. A log without token counts
        # weighs every rank alike.
        weight = np.where(ordered.num_tokens > 0, ordered.num_tokens, 1).astype(np.float64)
        weights = np.bincount(at[known], weights=weight[known], minlength=size)
        with np.errstate(invalid="ignore", over="ignore"):
            weighted = np.bincount(at[known], weights=(ordered.loss * weight)[known], minlength=size)
        measured[by_record] = weights[by_record] > 0
        mean = np.divide(weighted, weights, where=weights > 0, out=np.full(size, np.nan))
        loss[by_record], tokens[by_record] = mean[by_record], record_tokens[by_record]

    return StepSeries(
        step=step,
        attempt=attempt,
        loss=loss,
        tokens=tokens,
        measured=measured,
        grad_norm=grad_norm,
        has_grad_norm=has_grad_norm,
        reason=reason,
        num_records=num_records,
        num_empty=num_empty,
    )
