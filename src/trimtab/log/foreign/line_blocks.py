"""Cuts a text file into blocks of whole lines.

Enters: an open file. Leaves: blocks in order. Invariant: every line is in one block, or in none because it is longer
than `MAX_LINE_BYTES`, which is then said; memory is one such line and a read, whatever the size of the file. A file
without any line feed near its beginning may part its lines by carriage returns: it leaves with line feeds. A byte order
mark in front of the first line does not leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

BLOCK_BYTES = 4 << 20
"""Bytes read at a time."""

MAX_LINE_BYTES = 16 << 20
"""A longer line is left out: half a million rows in one micro-batch."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines of the file."""

    data: bytes
    first_line: int
    """Number of the first of them, counted from 1."""
    end_byte: int
    too_long: bool = False
    """The one line was longer than `MAX_LINE_BYTES`; `data` is empty."""
    has_end: bool = True
    """False for a last line without a line end, which is a block of its own: digits of it may be missing."""


def line_blocks(file: BinaryIO) -> Iterator[Lines]:
    """Reads a file from its beginning to its end."""
    for lines in _blocks(file):
        yield lines._replace(data=without_mark(lines.data)) if lines.first_line == 1 else lines


def without_mark(head: bytes) -> bytes:
    """The beginning of a file without the byte order mark that may stand in front."""
    return head.removeprefix(_BYTE_ORDER_MARK)


def _blocks(file: BinaryIO) -> Iterator[Lines]:
    """The blocks as they stand in the file."""
    rest, first_line = b"", 1
    line_end: bytes | None = None
    while chunk := file.read(BLOCK_BYTES):
        if line_end is None:
            line_end = b"\n" if b"\n" in chunk or b"\r" not in chunk else b"\r"
        data = rest + (chunk if line_end == b"\n" else chunk.replace(b"\r", b"\n"))
        end = data.rfind(b"\n") + 1
        if end:
            yield Lines(data[:end], first_line, file.tell())
            first_line += data.count(b"\n", 0, end)
        rest = data[end:]
        if len(rest) > MAX_LINE_BYTES:
            rest = _skip_line(file, line_end)
            yield Lines(b"", first_line, file.tell(), too_long=True)
            first_line += 1
    end = rest.rfind(b"\n") + 1  # behind a line that was skipped
    if end:
        yield Lines(rest[:end], first_line, file.tell())
    if end < len(rest):
        yield Lines(rest[end:], first_line + rest.count(b"\n"), file.tell(), has_end=False)


def _skip_line(file: BinaryIO, line_end: bytes) -> bytes:
    """Reads to the end of a line and gives what was read of the next."""
    while chunk := file.read(BLOCK_BYTES):
        end = chunk.find(line_end) + 1
        if end:
            return chunk[end:].replace(line_end, b"\n")
    return b""
