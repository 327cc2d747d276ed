"""Cuts a text file into blocks of whole lines.

Enters: an open file. Leaves: blocks in order. Invariant: every line is in one block, or in none because it is longer
than `MAX_LINE_BYTES`, which is then said; memory is one such line and a read, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK_BYTES = 4 << 20
"""Bytes read at a time."""

MAX_LINE_BYTES = 16 << 20
"""A longer line is left out: half a million rows in one micro-batch."""


class Lines(NamedTuple):
    """Whole lines of the file."""

    data: bytes
    first_line: int
    """Number of the first of them, counted from 1."""
    end_byte: int
    too_long: bool = False
    """The one line was longer than `MAX_LINE_BYTES`; `data` is empty."""


def line_blocks(file: BinaryIO) -> Iterator[Lines]:
    """Reads a file from where it stands to its end."""
    rest, first_line = b"", 1
    while chunk := file.read(BLOCK_BYTES):
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield Lines(data[:end], first_line, file.tell())
            first_line += data.count(b"\n", 0, end)
        rest = data[end:]
        if len(rest) > MAX_LINE_BYTES:
            rest = _skip_line(file)
            yield Lines(b"", first_line, file.tell(), too_long=True)
            first_line += 1
    if rest:
        yield Lines(rest, first_line, file.tell())


def _skip_line(file: BinaryIO) -> bytes:
    """Reads to the end of a line and gives what was read of the next."""
    while chunk := file.read(BLOCK_BYTES):
        end = chunk.find(b"\n") + 1
        if end:
            return chunk[end:]
    return b""
