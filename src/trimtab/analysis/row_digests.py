"""Row records become one number a step and column, so that two logs of any length are compared in one pass each.

Enters: row blocks, in whatever sizes. Leaves: `RowDigests`, whose entries are equal where the records of two steps
are, bit for bit, and the place of each record in its micro-batch. Invariant: memory is bounded by the number of steps;
in which blocks the records come changes nothing, nor does which rank comes first.

A record's place is its rank, its micro-batch and its position in that: rows that have changed places are a difference.
Two NaNs are equal whatever their bits. Two steps that differ have the same digest once in 2**64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import RowColumns
from trimtab.log.folding import folded
from trimtab.values import VERDICT_REASONS

_PENDING_LIMIT: Final = 1 << 18
"""Partial digests held before they are folded into one a step; 256 k x 64 bytes."""

_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
"""The finaliser of SplitMix64: every bit of what goes in changes half of what comes out."""

_NAN: Final = np.float64("nan").view(np.uint64)


class RowDigests(NamedTuple):
    """Parallel arrays, one entry a step, ascending; (S,) uint64 but for `step`.

    Attributes:
        step: (S,) int64.
        rank: Which ranks have records.
        micro: Which micro-batches they are of.
        row: Which rows, and where.
        loss_sum: What they cost.
        num_tokens: Their supervised tokens.
        verdict: What the guard said, and whether they were kept.
    """

    step: NDArray[np.int64]
    rank: NDArray[np.uint64]
    micro: NDArray[np.uint64]
    row: NDArray[np.uint64]
    loss_sum: NDArray[np.uint64]
    num_tokens: NDArray[np.uint64]
    verdict: NDArray[np.uint64]


class Places(NamedTuple):
    """Where each record (N) of a block stands.

    Attributes:
        position: (N,) int64, 0-based inside its micro-batch, in the order recorded.
        begins_rank: (N,) bool, whether it is the first of its step on its rank.
    """

    position: NDArray[np.int64]
    begins_rank: NDArray[np.bool_]


def digests(blocks: Iterable[RowColumns]) -> RowDigests:
    """One entry a step, of records in the order recorded, rank by rank; of a step that is there twice the sum."""
    return folded((_digest(block, places) for block, places in placed(blocks)), _fold, limit=_PENDING_LIMIT)


def placed(blocks: Iterable[RowColumns]) -> Iterator[tuple[RowColumns, Places]]:
    """Each block that holds records, and where they stand; a micro-batch may go on in the next block."""
    last: tuple[int, int, int] | None = None
    length = 0
    for block in blocks:
        if not block.num_records:
            continue
        begins_rank = _differs(block.rank) | _differs(block.step)
        begins_micro = begins_rank | _differs(block.micro)
        first = int(block.rank[0]), int(block.step[0]), int(block.micro[0])
        begins_rank[0] = last is None or first[:2] != last[:2]
        begins_micro[0] = first != last
        index = np.arange(block.num_records)
        # Of a record before the first beginning the micro-batch began in the block before.
        start = np.maximum.accumulate(np.where(begins_micro, index, -length))
        position = index - start
        last, length = (int(block.rank[-1]), int(block.step[-1]), int(block.micro[-1])), int(position[-1]) + 1
        yield block, Places(position, begins_rank)


def bits_of(values: NDArray[np.floating]) -> NDArray[np.uint64]:
    """The bits of some numbers (N,) as float64, every NaN the same."""
    wide = np.ascontiguousarray(values, np.float64)
    return np.where(np.isnan(wide), _NAN, wide.view(np.uint64))


def verdict_codes(block: RowColumns) -> NDArray[np.int64]:
    """What the guard said of each record (N,) and whether it was kept, in one number."""
    return block.reason.astype(np.int64) + np.where(block.keep, 0, len(VERDICT_REASONS))


def verdict_in_words(code: int) -> str:
    """The verdict behind a code of `verdict_codes`."""
    left_out, reason = divmod(code, len(VERDICT_REASONS))
    return VERDICT_REASONS[reason] + (", left out" if left_out else "")


def _differs(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether each of one value or more differs from the one before it; the first does."""
    differs = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def _digest(block: RowColumns, places: Places) -> RowDigests:
    rank = _mixed(np.full(block.num_records, _SEED), block.rank)
    micro = _mixed(rank, block.micro)
    place = _mixed(micro, places.position)
    none = np.uint64(0)
    return _reduced(
        RowDigests(
            step=block.step,
            rank=np.where(places.begins_rank, rank, none),
            micro=np.where(places.position == 0, micro, none),
            row=_mixed(place, block.row),
            loss_sum=_mixed(place, bits_of(block.loss_sum)),
            num_tokens=_mixed(place, block.num_tokens),
            verdict=_mixed(place, verdict_codes(block)),
        )
    )


def _mixed(before: NDArray[np.uint64], values: NDArray[np.integer]) -> NDArray[np.uint64]:
    """What was hashed before (N,), with one more value each; arithmetic of uint64 wraps around."""
    mixed = before ^ values.astype(np.uint64)
    mixed += _SEED
    for shift, factor in zip(_SHIFTS[:2], _MIXERS, strict=True):
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _SHIFTS[2]
    return mixed


def _fold(parts: list[RowDigests]) -> RowDigests:
    if not parts:
        return RowDigests(np.empty(0, np.int64), *(np.empty(0, np.uint64) for _ in RowDigests._fields[1:]))
    return _reduced(RowDigests._make(np.concatenate(column) for column in zip(*parts, strict=True)))


def _reduced(whole: RowDigests) -> RowDigests:
    """One entry a step, ascending."""
    if np.any(whole.step[1:] < whole.step[:-1]):
        order = np.argsort(whole.step, kind="stable")
        whole = RowDigests._make(column[order] for column in whole)
    starts = np.flatnonzero(_differs(whole.step))
    if starts.size == whole.step.size:
        return whole
    return RowDigests(whole.step[starts], *(np.add.reduceat(column, starts) for column in whole[1:]))
