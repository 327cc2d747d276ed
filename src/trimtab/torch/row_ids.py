"""What becomes of a micro-batch's ids: each row is told once, and not on the training thread's time.

Enters: the rows or the marks of a micro-batch, which may still be on a device. Leaves: `RowIds` for the recorder, which
are worked out when its writer asks for them. Invariant: all that remembers which rows were told is touched by the
writer's thread only, and stays bounded: one byte a row of a dataset, four a row of a stream up to `REMEMBERED_ROWS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.torch.loader import POSITION_BITS
from trimtab.torch.marks import unpack_marks
from trimtab.torch.transfer import to_host
from trimtab.values import RowIds

REMEMBERED_ROWS: Final = 1 << 24
"""Rows of a stream whose content is remembered, to see that their number means the same row again; 64 MiB."""

_UNSEEN: Final = 0
_SEVERAL: Final = 1
"""What stands in the memory of a stream for a number without content, and for one that stood for several rows."""


class IdBook(ABC):
    """What a run knows of its rows beside their numbers, and has not told yet.

    Attributes:
        by_marks: Whether `late` takes the marks of a micro-batch, and not its rows.
    """

    by_marks: bool
    _parts: tuple[str, ...]

    def late(self, numbers: torch.Tensor) -> RowIds | None:
        """The ids of one micro-batch, to be worked out by whoever reads them; None if all rows have been told.

        Args:
            numbers: Its rows, int64 of any shape, or its marks (..., W); on any device. Does not wait for a CUDA one.
        """
        if self.is_complete:
            return None
        waiting = to_host(numbers)
        found = _Late(lambda: self.new_ids(np.asarray(waiting)))
        size_bytes = int(waiting.nbytes)
        return RowIds(_LatePart(found, "rows", size_bytes), **{p: _LatePart(found, p, size_bytes) for p in self._parts})

    @property
    def is_complete(self) -> bool:
        """Whether every row of the dataset has been told."""
        return False

    @abstractmethod
    def new_ids(self, numbers: NDArray[np.int64]) -> RowIds:
        """The ids of those among the rows, or marks, that were not told before. In the writer's thread."""


class NamedRows(IdBook):
    """Rows of a map-style dataset that bring the user's own id with them."""

    by_marks = True
    _parts = ("names",)

    def __init__(self, num_rows: int) -> None:
        """Knows that the dataset has `num_rows`."""
        self._told = ToldRows(num_rows)

    def new_ids(self, numbers: NDArray[np.int64]) -> RowIds:
        """Those of the marks that bear a name and were not told before."""
        rows, _, names = unpack_marks(numbers)
        named = np.array([name is not None for name in names], np.bool_)
        new = np.flatnonzero(named)[self._told.first_seen(rows[named])]
        return RowIds(rows[new], names=[names[place] for place in new.tolist()])


class StreamRows(IdBook):
    """Rows of a stream, told by the digest of their content.

    A stream may yield other rows at the same positions in its next pass. A number that stood for two rows is no way to
    find one of them again: it is told a second time, without a digest.
    """

    by_marks = True
    _parts = ("digests", "names")

    def __init__(self) -> None:
        self._memory: dict[int, array[int]] = {}  # worker -> 32 bits of each position's digest
        self._num_remembered = 0

    def new_ids(self, numbers: NDArray[np.int64]) -> RowIds:
        """Those of the marks that say something which was not told before."""
        rows, digests, names = unpack_marks(numbers)
        told: list[tuple[int, int, str | None]] = []
        for row, digest, name in zip(rows.tolist(), digests.tolist(), names, strict=True):
            if digest:
                known = self._known(row, digest)
                if known == _UNSEEN:
                    told.append((row, digest, name))
                elif known == _SEVERAL:
                    told.append((row, 0, name))
            elif name is not None:
                told.append((row, 0, name))
        columns = list(zip(*told, strict=True)) or [(), (), ()]
        return RowIds(np.array(columns[0], np.int64), None, np.array(columns[1], np.int64), columns[2])

    def _known(self, row: int, digest: int) -> int | None:
        """`_UNSEEN` for a new row, `_SEVERAL` for one that has turned out another; None where nothing is to be said."""
        position = row & (1 << POSITION_BITS) - 1
        seen = self._memory.setdefault(row >> POSITION_BITS, array("I"))
        if position >= len(seen):
            num_more = position + 1 - len(seen)
            if self._num_remembered + num_more > REMEMBERED_ROWS:
                return _UNSEEN
            seen.extend([_UNSEEN] * num_more)
            self._num_remembered += num_more
        short = max(digest & 0xFFFFFFFF, _SEVERAL + 1)
        before = seen[position]
        if before in (short, _SEVERAL):
            return None
        seen[position] = short if before == _UNSEEN else _SEVERAL
        return _UNSEEN if before == _UNSEEN else _SEVERAL


class ToldRows:
    """Which rows of a dataset have been told; its memory is taken when the first one is."""

    def __init__(self, num_rows: int) -> None:
        """Knows that the dataset has `num_rows`, none of them told."""
        self.num_left = num_rows
        self._num_rows = num_rows
        self._told: NDArray[np.bool_] | None = None

    def first_seen(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in `rows` of those that were not told before, each row once; they are from now on."""
        distinct, place = np.unique(rows, return_index=True)
        inside = (distinct >= 0) & (distinct < self._num_rows)
        distinct, place = distinct[inside], place[inside]
        if not distinct.size:
            return place
        if self._told is None:
            self._told = np.zeros(self._num_rows, np.bool_)
        new = ~self._told[distinct]
        self._told[distinct] = True
        self.num_left -= int(np.count_nonzero(new))
        return place[new]


class _Late:
    """The result of `work`, which is done when it is first asked for, once."""

    def __init__(self, work: Callable[[], RowIds]) -> None:
        self._work: Callable[[], RowIds] | None = work
        self._ids: RowIds | None = None

    def ids(self) -> RowIds:
        if self._ids is None:
            assert self._work is not None, "it is dropped when it is done"
            self._ids, self._work = self._work(), None
        return self._ids


class _LatePart:
    """One part of late ids, as the recorder's writer reads it."""

    def __init__(self, late: _Late, name: str, size_bytes: int) -> None:
        self._late = late
        self._name = name
        self.nbytes = size_bytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - numpy's protocol
        return np.asarray(getattr(self._late.ids(), self._name), dtype=dtype)

    def __iter__(self) -> Iterator[Any]:
        return iter(getattr(self._late.ids(), self._name))
