"""Takes a TensorBoard event file apart into the records that its writer framed.

    uint64 size | CRC-32C of the size, masked | data | CRC-32C of the data, masked        (all little-endian)

Enters: an open file. Leaves: records whose two checksums were right, in file order, and after a full pass one line for
each stretch that was left out. Invariants: damage raises nothing and yields no wrong record; behind a size that is
wrong the next frame is looked for, because the format has no marks; memory is a read and one record, however large a
record claims to be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.tensorboard.crc32c import crc32c

BLOCK_BYTES: Final = 1 << 20
"""Bytes read at a time."""

MAX_RECORD_BYTES: Final = 16 << 20
"""A larger record is passed over: an image or a graph; one scalar takes some fifty bytes."""

MAX_LINES: Final = 5
"""Places of damage that are named, file by file."""

HEAD_BYTES: Final = 12
_FRAME_BYTES: Final = HEAD_BYTES + 4
_SIZE: Final = struct.Struct("<Q")


class Records(NamedTuple):
    """Good records of one read.

    Attributes:
        data: The bytes of the read.
        spans: First and last but one byte of each record's data in it.
        offset: Where in the file the first byte of `data` stands.
    """

    data: bytes
    spans: list[tuple[int, int]]
    offset: int


class EventFrames:
    """One pass over one event file.

    Args:
        file: Opened for reading, at its beginning.
        name: What to call it in notices.
    """

    def __init__(self, file: BinaryIO, *, name: str) -> None:
        self._file = file
        self._name = name
        self._lines: list[tuple[int, str]] = []
        self._num_lines = 0
        self._num_large = 0
        self._large_from = 0
        self._lost_from: int | None = None  # a frame with a wrong size began here, and no good one was found since

    def records(self) -> Iterator[Records]:
        """Good records, read by read."""
        rest, offset, num_wanted = b"", 0, BLOCK_BYTES
        while chunk := self._file.read(num_wanted):
            data = rest + chunk
            spans, end, num_missing = self._walk(data, offset)
            if spans:
                yield Records(data, spans, offset)
            rest, offset, num_wanted = data[end:], offset + end, max(num_missing, BLOCK_BYTES)
            if end > len(data):  # a large record is not read
                self._file.seek(offset)
        size = self._file.seek(0, 2)
        if self._lost_from is not None:
            self._say(self._lost_from, f"bytes {self._lost_from} to {size} are damaged and were left out")
        elif rest or offset > size:
            begin = offset if rest else self._large_from
            self._say(begin, f"the last record, at byte {begin}, is torn: the run was stopped while writing it")

    def notices(self) -> list[str]:
        """What was left out, in file order; complete after a full pass."""
        more = self._num_lines - len(self._lines)
        said = [line for _, line in sorted(self._lines)]
        if more:
            said.append(f"{self._name}: {more} more places are damaged")
        if self._num_large:
            what = "a record" if self._num_large == 1 else f"{self._num_large} records"
            said.append(f"{self._name}: {what} of more than {MAX_RECORD_BYTES >> 20} MB passed over")
        return said

    def _walk(self, data: bytes, offset: int) -> tuple[list[tuple[int, int]], int, int]:
        """Spans of the good records in `data`, where the part begins that is not done, and how much of it is missing.

        That part begins behind `data` where a large record is passed over.
        """
        raw = np.frombuffer(data, np.uint8)
        heads = _heads(raw)
        is_head = set(heads.tolist())
        starts: list[int] = []
        sizes: list[int] = []
        unpack, num_bytes, place, missing = _SIZE.unpack_from, len(data), 0, 0
        while True:
            if self._lost_from is not None:
                found = int(np.searchsorted(heads, place))
                if found == heads.size:
                    # The head of a frame may have begun in the last bytes.
                    place = max(place, num_bytes - HEAD_BYTES + 1)
                    break
                place = int(heads[found])
                self._say(self._lost_from, f"bytes {self._lost_from} to {offset + place} are damaged and were left out")
                self._lost_from = None
            while place in is_head:
                size = unpack(data, place)[0]
                if place + _FRAME_BYTES + size > num_bytes:
                    break
                starts.append(place + HEAD_BYTES)
                sizes.append(size)
                place += _FRAME_BYTES + size
            if num_bytes - place < HEAD_BYTES:
                break
            if place in is_head:
                size = unpack(data, place)[0]
                if size <= MAX_RECORD_BYTES:
                    missing = place + _FRAME_BYTES + size - num_bytes
                    break
                self._num_large += 1
                self._large_from = offset + place
                place += _FRAME_BYTES + size
                break
            self._lost_from = offset + place
            place += 1
        return self._whole(raw, np.array(starts, np.int64), np.array(sizes, np.int64), offset), place, missing

    def _whole(
        self, raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], offset: int
    ) -> list[tuple[int, int]]:
        """Spans of the records whose data has the checksum that stands behind it."""
        right = _masked(crc32c(raw, start=starts, size=sizes)) == _stored(raw, starts + sizes)
        for start in starts[~right].tolist():
            place = offset + start - HEAD_BYTES
            self._say(place, f"the record at byte {place} is damaged (its checksum is wrong) and was left out")
        return list(zip(starts[right].tolist(), (starts + sizes)[right].tolist(), strict=True))

    def _say(self, place: int, what: str) -> None:
        self._num_lines += 1
        if len(self._lines) < MAX_LINES:
            self._lines.append((place, f"{self._name}: {what}"))


def _heads(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Every place at which the head of a frame stands, its checksum right; an empty record is none."""
    num_places = max(0, raw.size - HEAD_BYTES + 1)
    byte = [raw[at : at + num_places] for at in range(8)]
    # A size of up to a terabyte has three zero bytes on top, and only a few places in a file that is no frame's do.
    large_zero = (byte[5] | byte[6] | byte[7]) == 0
    starts = np.flatnonzero(large_zero & ((byte[0] | byte[1] | byte[2] | byte[3] | byte[4]) != 0))
    fits = _masked(crc32c(raw, start=starts, size=np.full(starts.size, 8, np.int64))) == _stored(raw, starts + 8)
    heads: NDArray[np.int64] = starts[fits]
    return heads


def _stored(raw: NDArray[np.uint8], start: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The 32 bits that stand at each place."""
    words: NDArray[np.uint32] = raw[start[:, None] + np.arange(4)].view("<u4")[:, 0]
    return words


def _masked(checksum: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """How the format stores a checksum, so that one of a string that holds checksums is no trivial value."""
    turned: NDArray[np.uint32] = (checksum >> np.uint32(15)) | (checksum << np.uint32(17))
    return turned + np.uint32(0xA282EAD8)
