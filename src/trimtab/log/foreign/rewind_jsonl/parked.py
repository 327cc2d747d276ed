"""Row records that were expensive to decode, parked for the next pass: in memory while small, then in a nameless file.

Enters: blocks of row records, once, in order. Leaves: the same blocks, as often as asked. Invariant: what comes back
equals what was parked; memory is bounded by one block and `MEMORY_LIMIT`.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import RowColumns

MEMORY_LIMIT = 8 << 20
"""Bytes held in memory before a temporary file is used."""

INTEGERS = (np.int8, np.int16, np.int32, np.int64)


class _Column(NamedTuple):
    """Where one column of a block lies, and how narrow."""

    stored: np.dtype[Any]
    original: np.dtype[Any]
    num_stored: int


class _Parked(NamedTuple):
    offset: int
    num_records: int
    first_step: int
    last_step: int
    columns: tuple[_Column, ...]


class ParkedRows:
    """Blocks of row records, written once and read back any number of times."""

    def __init__(self) -> None:
        # Nameless from the start: nothing is left behind, however the process ends.
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_LIMIT)  # noqa: SIM115 - lives as long as the log
        self._finalizer = weakref.finalize(self, self._file.close)
        self._blocks: list[_Parked] = []
        self._size = 0

    def park(self, block: RowColumns) -> None:
        """Writes one block with at least one record.

        Raises:
            OSError: There is no room for it.
        """
        columns, offset = [], self._size
        for column in block:
            narrow = _narrow(column)
            self._size += self._file.write(narrow.tobytes())
            columns.append(_Column(narrow.dtype, column.dtype, narrow.size))
        first, last = int(block.step.min()), int(block.step.max())
        self._blocks.append(_Parked(offset, block.num_records, first, last, tuple(columns)))

    def blocks(self, *, first_step: int | None, last_step: int | None) -> Iterator[RowColumns]:
        """Gives back the blocks that may hold steps from `first_step` to `last_step`, in the order parked.

        Args:
            first_step: First step of interest; None: from the start.
            last_step: Last step of interest; None: to the end.
        """
        for block in self._blocks:
            outside = (first_step is not None and block.last_step < first_step) or (
                last_step is not None and block.first_step > last_step
            )
            if not outside:
                yield self._read(block)

    def close(self) -> None:
        """Frees the memory or the file; nothing can be read afterwards."""
        self._finalizer()

    def _read(self, block: _Parked) -> RowColumns:
        self._file.seek(block.offset)
        return RowColumns(
            *(
                np.broadcast_to(
                    np.frombuffer(self._file.read(column.num_stored * column.stored.itemsize), column.stored),
                    block.num_records,
                ).astype(column.original)
                for column in block.columns
            )
        )


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """The same values in fewer bytes: one value for a constant column, small integers for small numbers."""
    if column.dtype.kind not in "iu":
        return column[:1] if column.dtype.kind == "b" and column.all() else column
    low, high = int(column.min()), int(column.max())
    if low == high:
        return column[:1]
    for dtype in INTEGERS:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return column.astype(dtype)
    return column
