"""The zip archives of `torch.save`: every entry stored as it is, read without inflating a byte.

Enters: a file that may come from a stranger. Leaves: its entries, and a check of each against its CRC-32, or a
`BadArchive` that says what is wrong. Invariants: no more of a directory is read than torch could have written for
`MAX_ENTRIES`; an entry that is compressed or encrypted, that overlaps another or lies outside of the file is refused
before a byte of it is read, so the bytes of all entries are never more than those of the file.

    local header, name, padding, data, [descriptor] ... central directory, zip64 records, end record

torch itself reads the central directory and the data, and compares no checksum: a flipped bit loads.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from trimtab.resume.checksum import Progress
from trimtab.text import plain

MAX_ENTRIES: Final = 500_000
"""One a tensor, and a few: the states of the largest published models have 150,000."""

MAX_DIRECTORY_BYTES: Final = 64 << 20
"""Room for the names of `MAX_ENTRIES` entries, 46 bytes of header each."""

CHUNK_BYTES: Final = 1 << 20
"""Read at a time; larger ones are no faster."""

_END: Final = struct.Struct("<4s4H2LH")
_END64_PLACE: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_ZIP64_FIELD: Final = 1
_IS_FOLDER: Final = 0x10


class BadArchive(Exception):  # noqa: N818 - its text is the end of a sentence: what is wrong with the archive
    """An archive that torch did not write, or not to its end; the text says why, plain ASCII."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in an archive.

    Attributes:
        name: Its name, with the folder that torch puts in front.
        start: Where its data begin, in bytes from the start of the archive.
        size_bytes: Their size.
        crc32: What their CRC-32 should be.
    """

    name: str
    start: int
    size_bytes: int
    crc32: int


def read_entries(file: BinaryIO) -> tuple[Entry, ...]:
    """The entries of an archive, in the order in which their data stand.

    Args:
        file: The archive, seekable.

    Raises:
        BadArchive: It is none, or none of torch's; nothing of any entry was read.
        OSError: It cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    num_entries, directory_start, directory_bytes = _directory(file, size=size)
    directory = _read(file, directory_start, directory_bytes)
    headers = sorted(_headers(directory, num_entries=num_entries), key=lambda header: header.local_start)
    if len({header.name for header in headers}) < len(headers):
        raise BadArchive("has two entries of one name; torch.save writes none twice")
    if headers and headers[0].local_start:
        raise BadArchive("does not begin with its first entry: something was written in front of it")
    entries = []
    behind = 0
    for header in headers:
        if header.local_start < behind:
            raise BadArchive(f"has entries that overlap, at {plain(header.name)}")
        entry = _located(file, header, end=directory_start)
        entries.append(entry)
        behind = entry.start + entry.size_bytes
    return tuple(entries)


def wrong_checksums(file: BinaryIO, entries: tuple[Entry, ...], *, progress: Progress | None = None) -> Iterator[Entry]:
    """Reads every entry, and gives those whose bytes are not those that were written.

    Args:
        file: The archive.
        entries: What `read_entries` gave.
        progress: Called now and then with how many more bytes were read.

    Raises:
        BadArchive: The file has become shorter.
        OSError: It cannot be read.
    """
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    for entry in entries:
        file.seek(entry.start)
        left, found = entry.size_bytes, 0
        while left:
            num = file.readinto(view[: min(left, CHUNK_BYTES)])  # type: ignore[attr-defined]  # of every binary file
            if not num:
                raise BadArchive(f"ends inside of its entry {plain(entry.name)}")
            found = zlib.crc32(view[:num], found)
            left -= num
            if progress is not None:
                progress(num)
        if found != entry.crc32:
            yield entry


def read_entry(file: BinaryIO, entry: Entry) -> bytes:
    """All of an entry; the caller has looked at its size.

    Raises:
        BadArchive: The file has become shorter.
        OSError: It cannot be read.
    """
    return _read(file, entry.start, entry.size_bytes)


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    raw_name: bytes
    local_start: int
    size_bytes: int
    crc32: int


def _directory(file: BinaryIO, *, size: int) -> tuple[int, int, int]:
    """How many entries there are, and where the central directory begins and how long it is."""
    if size < _END.size:
        raise BadArchive(f"is {size:,} bytes long: too short for a zip archive")
    tail_bytes = min(size, _END.size + _END64_PLACE.size)
    tail = _read(file, size - tail_bytes, tail_bytes)
    signature, disk, directory_disk, num_here, num, num_bytes, start, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06":
        raise BadArchive("does not end as a zip archive does: it is truncated, or something was written behind it")
    if comment or disk or directory_disk or num_here != num:
        raise BadArchive("has a comment or several parts, which torch.save does not write")
    end = size - _END.size
    if tail[: -_END.size].startswith(b"PK\x06\x07"):
        brief = (num, num_bytes, start)
        num, num_bytes, start, end = _directory64(file, tail, size=size)
        limits = (_MAX16, _MAX32, _MAX32)
        if any(
            few not in (limit, many) for few, limit, many in zip(brief, limits, (num, num_bytes, start), strict=True)
        ):
            raise BadArchive("has two end records that contradict each other: it is damaged at its end")
    if start + num_bytes != end:
        raise BadArchive("has a directory that does not end where its end records begin: bytes are missing or too many")
    if num > MAX_ENTRIES or num_bytes > MAX_DIRECTORY_BYTES:
        raise BadArchive(f"says it has {num:,} entries; more than {MAX_ENTRIES:,} are not looked at")
    return num, start, num_bytes


def _directory64(file: BinaryIO, tail: bytes, *, size: int) -> tuple[int, int, int, int]:
    _, disk, start64, num_disks = _END64_PLACE.unpack(tail[: -_END.size])
    if start64 + _END64.size + len(tail) != size:
        raise BadArchive("has end records that do not stand at its end: bytes are missing or too many")
    record = _END64.unpack(_read(file, start64, _END64.size))
    signature, record_bytes, _, _, *disks, num_here, num, num_bytes, start = record
    if signature != b"PK\x06\x06" or record_bytes != _END64.size - 12 or num_here != num:
        raise BadArchive("lacks the records of a large zip archive: it is damaged at its end")
    if disk or num_disks != 1 or any(disks):
        raise BadArchive("has several parts, which torch.save does not write")
    return num, num_bytes, start, start64


def _headers(directory: bytes, *, num_entries: int) -> Iterator[_Header]:
    at = 0
    for _ in range(num_entries):
        if at + _CENTRAL.size > len(directory) or directory[at : at + 4] != b"PK\x01\x02":
            raise BadArchive("has a directory that is damaged")
        fields = _CENTRAL.unpack_from(directory, at)
        flags, method = fields[3], fields[4]
        crc32, packed_bytes, size_bytes, name_bytes, extra_bytes, comment_bytes = fields[7:13]
        raw_name = directory[at + _CENTRAL.size : at + _CENTRAL.size + name_bytes]
        name = raw_name.decode("utf-8", "replace")
        extra_start = at + _CENTRAL.size + name_bytes
        extra = directory[extra_start : extra_start + extra_bytes]
        size_bytes, packed_bytes, local_start = _large_fields(extra, size_bytes, packed_bytes, fields[16])
        if fields[13] or fields[15] & _IS_FOLDER or name.endswith("/"):
            # Of a folder torch reads no byte, and takes what stands in memory for its data.
            raise BadArchive(f"says that its entry {plain(name)} is a folder, or in another part: it is damaged")
        if method or packed_bytes != size_bytes:
            # A few kilobytes can inflate to the size of a disk.
            raise BadArchive(f"has the compressed entry {plain(name)}; torch.save stores every entry as it is")
        if flags & _ENCRYPTED:
            raise BadArchive(f"has the encrypted entry {plain(name)}, which torch.save does not write")
        _refuse_climbing(name)
        yield _Header(name, raw_name, local_start, size_bytes, crc32)
        at = extra_start + extra_bytes + comment_bytes
    if at != len(directory):
        raise BadArchive("has a directory of another length than it says")


def _large_fields(extra: bytes, size_bytes: int, packed_bytes: int, local_start: int) -> tuple[int, int, int]:
    """The sizes and the place of an entry; what does not fit into 32 bits stands in its zip64 field."""
    wanted = [size_bytes == _MAX32, packed_bytes == _MAX32, local_start == _MAX32]
    values = [size_bytes, packed_bytes, local_start]
    at = 0
    while any(wanted) and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64_FIELD and 8 * sum(wanted) <= length <= len(extra) - at - 4:
            large = iter(struct.unpack_from(f"<{sum(wanted)}Q", extra, at + 4))
            values = [next(large) if is_large else value for is_large, value in zip(wanted, values, strict=True)]
            return values[0], values[1], values[2]
        at += 4 + length
    return values[0], values[1], values[2]


def _refuse_climbing(name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or ":" in parts[0]:
        raise BadArchive(f"has an entry whose name leads out of it: {plain(name)}")


def _located(file: BinaryIO, header: _Header, *, end: int) -> Entry:
    """Where an entry's data are; refuses one whose own header says something else than the directory."""
    wrong = BadArchive(f"is damaged at its entry {plain(header.name)}: it is not where the directory says")
    if header.local_start + _LOCAL.size > end:
        raise wrong
    local = _read(file, header.local_start, _LOCAL.size + len(header.raw_name))
    signature, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(local)
    if signature != b"PK\x03\x04" or name_bytes != len(header.raw_name) or local[_LOCAL.size :] != header.raw_name:
        raise wrong
    start = header.local_start + _LOCAL.size + name_bytes + extra_bytes
    if start + header.size_bytes > end:
        raise wrong
    return Entry(header.name, start, header.size_bytes, header.crc32)


def _read(file: BinaryIO, start: int, num_bytes: int) -> bytes:
    file.seek(start)
    data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise BadArchive("has become shorter while it was read")
    return data
