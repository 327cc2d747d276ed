"""Columns in which a log is read: parallel one-dimensional numpy arrays, one entry a record.

Enters: what a reader decoded. Leaves: `RowColumns` and `StepColumns`, for the analysis to reduce. Invariant: all arrays
of one value have the same length, and nothing in here knows a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DTYPES: Final[dict[str, type[np.generic]]] = {
    "attempt": np.int32,
    "rank": np.int32,
    "step": np.int64,
    "micro": np.int32,
    "row": np.int64,
    "loss_sum": np.float32,
    "num_tokens": np.int64,
    "reason": np.uint8,
    "keep": np.bool_,
    "loss": np.float64,
    "grad_norm": np.float64,
    "has_grad_norm": np.bool_,
    "lr": np.float64,
    "has_lr": np.bool_,
    "clipped": np.int8,
    "loss_scale": np.float64,
    "wall_s": np.float64,
    "num_skipped_micros": np.int64,
    "num_skipped_tokens": np.int64,
}


_UNKNOWN_DETAILS: Final[dict[str, float]] = {
    "lr": np.nan,
    "has_lr": False,
    "clipped": -1,
    "loss_scale": np.nan,
    "wall_s": np.nan,
    "num_skipped_micros": 0,
    "num_skipped_tokens": 0,
}
"""What a step record holds beside its loss and its norm, each as nobody knows it: half of its bytes."""


class RowColumns(NamedTuple):
    """Row records: one row of one micro-batch on one rank. Inside a block they stand in the order recorded.

    Steps ascend within an attempt and rank. A row without supervised tokens has `num_tokens` 0 and `loss_sum` 0.

    Attributes:
        attempt: (N,) int32, 1 for the run's first start, one more for each time it was continued.
        step: (N,) int64, 1-based optimizer step.
        micro: (N,) int32, 0-based place of the micro-batch inside the step.
        rank: (N,) int32, rank that trained on it.
        row: (N,) int64, dataset row number.
        loss_sum: (N,) float32 (own logs) or float64 (foreign ones), sum over supervised tokens; may be NaN or infinite.
        num_tokens: (N,) int32 (own logs) or int64, supervised tokens.
        reason: (N,) uint8, index into `trimtab.values.VERDICT_REASONS`.
        keep: (N,) bool, whether the micro-batch took part in the update.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    micro: NDArray[np.int32]
    rank: NDArray[np.int32]
    row: NDArray[np.int64]
    loss_sum: NDArray[np.floating]
    num_tokens: NDArray[np.integer]
    reason: NDArray[np.uint8]
    keep: NDArray[np.bool_]

    @property
    def num_records(self) -> int:
        """Number of row records (N); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    def take(self, which: NDArray[np.integer | np.bool_]) -> RowColumns:
        """The records that an index array or a mask picks."""
        return RowColumns._make(column[which] for column in self)

    @classmethod
    def empty(cls) -> RowColumns:
        """No records, with the dtypes of our own log."""
        # In a journal the tokens of one row fit 32 bits; those of a step may not.
        return cls._make(_no_records(cls._fields))._replace(num_tokens=np.empty(0, np.int32))

    @classmethod
    def concat(cls, blocks: Iterable[RowColumns]) -> RowColumns:
        """All blocks in one, in the order given; none gives `empty()`."""
        return cls._make(_joined(blocks) or cls.empty())


class StepColumns(NamedTuple):
    """Step records: one optimizer step on one rank.

    Attributes:
        attempt: (N,) int32, as in `RowColumns`.
        rank: (N,) int32.
        step: (N,) int64, 1-based.
        loss: (N,) float64, what the run reported as its loss; NaN if unknown.
        grad_norm: (N,) float64, gradient norm before clipping; NaN where not measured, and where it was NaN.
        has_grad_norm: (N,) bool, tells the two apart.
        lr: (N,) float64, learning rate of the first parameter group; NaN where unknown.
        has_lr: (N,) bool.
        reason: (N,) uint8, index into `trimtab.values.STEP_REASONS`.
        clipped: (N,) int8, 1 clipped, 0 not, -1 unknown.
        loss_scale: (N,) float64, the gradient scaler's scale; NaN without one.
        wall_s: (N,) float64, seconds since the previous step ended; NaN if unknown.
        num_tokens: (N,) int64, supervised tokens of the step on this rank; -1 where nobody counted them; 0 with a
            NaN loss: nothing was measured.
        num_skipped_micros: (N,) int64.
        num_skipped_tokens: (N,) int64.
    """

    attempt: NDArray[np.int32]
    rank: NDArray[np.int32]
    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    grad_norm: NDArray[np.float64]
    has_grad_norm: NDArray[np.bool_]
    lr: NDArray[np.float64]
    has_lr: NDArray[np.bool_]
    reason: NDArray[np.uint8]
    clipped: NDArray[np.int8]
    loss_scale: NDArray[np.float64]
    wall_s: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    num_skipped_micros: NDArray[np.int64]
    num_skipped_tokens: NDArray[np.int64]

    @property
    def num_records(self) -> int:
        """Number of step records (N); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    def take(self, which: NDArray[np.integer | np.bool_]) -> StepColumns:
        """The records that an index array or a mask picks."""
        return StepColumns._make(column[which] for column in self)

    @classmethod
    def empty(cls) -> StepColumns:
        """No records."""
        return cls._make(_no_records(cls._fields))

    @classmethod
    def concat(cls, blocks: Iterable[StepColumns]) -> StepColumns:
        """All blocks in one, in the order given; none gives `empty()`."""
        return cls._make(_joined(blocks) or cls.empty())

    @classmethod
    def concat_brief(cls, blocks: Iterable[StepColumns]) -> StepColumns:
        """As `concat`, with the details as nobody knows them, which takes no memory; not to be written to."""
        names = [name for name in cls._fields if name not in _UNKNOWN_DETAILS]
        columns = _joined([getattr(block, name) for name in names] for block in blocks)
        if not columns:
            return cls.empty()
        known = dict(zip(names, columns, strict=True))
        details = {
            name: np.broadcast_to(np.array(unknown, _DTYPES[name]), known["step"].shape)
            for name, unknown in _UNKNOWN_DETAILS.items()
        }
        return cls(**known, **details)


class SideColumns(NamedTuple):
    """What another tool's log holds beside its steps, one entry a line that has any of it.

    Attributes:
        attempt: (N,) int32, as in `RowColumns`; ascending.
        step: (N,) int64, in the order of the file.
        router_z: (N,) float64, over all layers of the model; NaN where not logged, or not finite.
        load_balance: (N,) float64, likewise.
        tokens_per_s: (N,) float64, likewise.
        names: What the log calls them, by field.
    """

    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    router_z: NDArray[np.float64]
    load_balance: NDArray[np.float64]
    tokens_per_s: NDArray[np.float64]
    names: Mapping[str, str]

    @property
    def num_records(self) -> int:
        """Number of entries (N); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    @classmethod
    def empty(cls) -> SideColumns:
        """Nothing beside the steps."""
        nothing = np.empty(0, np.float64)
        return cls(np.empty(0, np.int32), np.empty(0, np.int64), nothing, nothing, nothing, {})


class IdColumns(NamedTuple):
    """What the rows of a run are beside their number; a row that was handed over twice stands once, the last counts.

    Attributes:
        row: (N,) int64 dataset row number, ascending.
        table_row: (N,) int64 row of the table underneath; -1 where nobody knows.
        digest: (N,) int64 `trimtab.spelling.row_digest` of the content; 0 where the number stood for several rows.
        has_digest: (N,) bool, whether there is one.
        name: (N,) object, the user's own id, a str; None where there is none.
    """

    row: NDArray[np.int64]
    table_row: NDArray[np.int64]
    digest: NDArray[np.int64]
    has_digest: NDArray[np.bool_]
    name: NDArray[np.object_]

    @property
    def num_records(self) -> int:
        """Number of rows (N); `len()` of a named tuple counts its fields instead."""
        return int(self.row.size)

    def take(self, which: NDArray[np.integer | np.bool_] | slice) -> IdColumns:
        """The rows that an index array, a mask or a slice picks."""
        return IdColumns._make(column[which] for column in self)

    @classmethod
    def empty(cls) -> IdColumns:
        """No rows."""
        whole = np.empty(0, np.int64)
        return cls(whole, whole, whole, np.empty(0, np.bool_), np.empty(0, np.object_))

    @classmethod
    def concat(cls, blocks: Iterable[IdColumns]) -> IdColumns:
        """All blocks in one, in the order given; none gives `empty()`."""
        return cls._make(_joined(blocks) or cls.empty())

    def digests_of(self, rows: Iterable[int]) -> dict[int, int]:
        """What the content of some rows hashes to, as far as it is known: not of a number that stood for several."""
        listed = np.isin(self.row, np.fromiter(rows, np.int64)) & self.has_digest & (self.digest != 0)
        return dict(zip(self.row[listed].tolist(), self.digest[listed].tolist(), strict=True))

    def latest(self) -> IdColumns:
        """Each row once, ascending: of one that stands here several times, what stands last."""
        _, from_behind = np.unique(self.row[::-1], return_index=True)
        return self.take(self.num_records - 1 - from_behind)


def _joined(blocks: Iterable[Iterable[NDArray[Any]]]) -> list[NDArray[Any]]:
    """The columns of all blocks, each in one; none for no blocks."""
    columns = [list(column) for column in zip(*blocks, strict=True)]
    joined = []
    for column in columns:
        joined.append(np.concatenate(column))
        column.clear()  # a million step records are 95 MB: twice that, were the parts of each column kept to the end
    return joined


def _no_records(fields: Iterable[str]) -> list[NDArray[Any]]:
    return [np.empty(0, _DTYPES[name]) for name in fields]
