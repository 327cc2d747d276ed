"""`segment.json`: what a sealed segment holds, and the checksums of its files (FORMAT.md, "Segments").

Enters: a `SegmentInfo`, or bytes that claim to be one. Leaves: bytes, or the value again. Invariant: it names no file
but those of `FILES`; nothing in it is believed before its own checksum is right and every number within its bounds.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from trimtab.errors import LogError
from trimtab.log.frames import MAX_ATTEMPT, MAX_RANK
from trimtab.log.header import dump_header, load_header
from trimtab.strict_json import loads
from trimtab.values import RUN_ID, RunHeader

INFO_NAME: Final = "segment.json"
SEGMENT_VERSION: Final = 1
MAX_INFO_SIZE: Final = 16 << 20
MAX_NUMBER: Final = 999_999

ROWS_FILE: Final = "rows.parquet"
STEPS_FILE: Final = "steps.parquet"
IDS_FILE: Final = "ids.parquet"
EVENTS_FILE: Final = "events.jsonl"
FILES: Final = (ROWS_FILE, STEPS_FILE, IDS_FILE, EVENTS_FILE)

MAX_GROUP_RECORDS: Final = 1 << 18
"""Records in one group that a reader takes at most, twice what is written: a hostile one cannot ask for over 20 MB."""

_INT64: Final = range(-(2**63), 2**63)
_CHECK: Final = b'{"crc32": "%08x",\n'
_CHECK_SIZE: Final = len(_CHECK % 0)


class BadSegmentError(Exception):
    """A segment that is none, or not this one; the message says what is wrong. Inside the log room only."""


@dataclass(frozen=True, slots=True)
class Group:
    """A stretch of one file with a checksum of its own: a row group, or lines.

    Attributes:
        offset: Its first byte.
        size_bytes: Its length.
        crc: CRC-32 of those bytes.
        num_records: Records in it.
        first_step: Lowest step in it; 0 for ids.
        last_step: Highest step in it.
    """

    offset: int
    size_bytes: int
    crc: int
    num_records: int
    first_step: int
    last_step: int

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a segment.

    Attributes:
        size_bytes: Its size.
        rest_crc: CRC-32 of all bytes that are in no group: Parquet's mark at the start and its index at the end.
        groups: Ascending, without overlap.
    """

    size_bytes: int
    rest_crc: int
    groups: tuple[Group, ...]

    @property
    def num_records(self) -> int:
        """Records of all groups."""
        return sum(group.num_records for group in self.groups)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is in a segment.

    Attributes:
        run_id: The run; None where no attempt header named it.
        rank: The rank that recorded it.
        number: Its place among the parts of that rank, 1 and up.
        has_rows: Whether rows were recorded, even if every micro-batch was empty.
        attempts: The attempts in it, and the header of each; None where it was lost.
        files: By name.
    """

    run_id: str | None
    rank: int
    number: int
    has_rows: bool
    attempts: Mapping[int, RunHeader | None]
    files: Mapping[str, FileInfo]

    @property
    def size_bytes(self) -> int:
        """Size of all its files but `segment.json`."""
        return sum(file.size_bytes for file in self.files.values())


def dump_info(info: SegmentInfo) -> bytes:
    """Strict JSON in ASCII; its first line holds the checksum of all others.

    Raises:
        BadSegmentError: It is longer than a reader would take.
    """
    attempts = [
        {"attempt": attempt, "header": None if header is None else json.loads(dump_header(header))}
        for attempt, header in sorted(info.attempts.items())
    ]
    document = {
        "version": SEGMENT_VERSION,
        "run_id": info.run_id,
        "rank": info.rank,
        "number": info.number,
        "has_rows": info.has_rows,
        "attempts": attempts,
        "files": {name: asdict(file) for name, file in info.files.items()},
    }
    rest = json.dumps(document, indent=1, allow_nan=False).encode("ascii")[1:]
    data = _CHECK % zlib.crc32(rest) + rest
    if len(data) > MAX_INFO_SIZE:
        raise BadSegmentError(f"{INFO_NAME} of {len(data)} bytes, and at most {MAX_INFO_SIZE} are read")
    return data


def load_info(data: bytes) -> SegmentInfo:
    """The segment that the bytes describe.

    Raises:
        BadSegmentError: They describe none, or one of a newer version.
    """
    _demand(len(data) <= MAX_INFO_SIZE, f"has more than {MAX_INFO_SIZE} bytes")
    rest = data[_CHECK_SIZE:]
    _demand(data[:_CHECK_SIZE] == _CHECK % zlib.crc32(rest), "has a wrong checksum")
    try:
        document = loads(b"{" + rest)
    except ValueError as error:
        raise BadSegmentError("is no JSON") from error
    version = document.get("version")
    _demand(type(version) is int and version >= 1, "has no version")
    _demand(
        version <= SEGMENT_VERSION, f"was written by a newer trimtab (version {version}); upgrade trimtab to read it"
    )
    run_id = document.get("run_id")
    _demand(run_id is None or (isinstance(run_id, str) and RUN_ID.match(run_id)), "has a run_id that names no folder")
    files = document.get("files")
    _demand(isinstance(files, dict) and set(files) <= set(FILES), f"names other files than {', '.join(FILES)}")
    attempts = document.get("attempts")
    _demand(isinstance(attempts, list) and len(attempts) <= MAX_ATTEMPT + 1, "lists no attempts")
    _demand(isinstance(document.get("has_rows"), bool), "does not say whether it has rows")
    return SegmentInfo(
        run_id=run_id,
        rank=_whole(document, "rank", range(MAX_RANK + 1)),
        number=_whole(document, "number", range(1, MAX_NUMBER + 1)),
        has_rows=document["has_rows"],
        attempts=dict(map(_attempt, attempts)),
        files={name: _file(entry) for name, entry in files.items()},
    )


def _attempt(entry: Any) -> tuple[int, RunHeader | None]:
    attempt = _whole(entry, "attempt", range(MAX_ATTEMPT + 1))
    if entry.get("header") is None:
        return attempt, None
    try:
        header, _ = load_header(json.dumps(entry["header"]).encode(), where=INFO_NAME)
    except LogError:  # by a newer version: the records are as they are
        header = None
    return attempt, header


def _file(entry: Any) -> FileInfo:
    size_bytes = _whole(entry, "size_bytes", range(2**63))
    found = entry.get("groups")
    _demand(isinstance(found, list), "lists no groups")
    groups = tuple(map(_group, found))
    end = 0
    for group in groups:
        _demand(group.offset >= end, "has groups that overlap")
        end = group.end
    _demand(end <= size_bytes, "has groups beyond the end of their file")
    return FileInfo(size_bytes, _whole(entry, "rest_crc", range(2**32)), groups)


def _group(entry: Any) -> Group:
    return Group(
        offset=_whole(entry, "offset", range(2**63)),
        size_bytes=_whole(entry, "size_bytes", range(1, 2**63)),
        crc=_whole(entry, "crc", range(2**32)),
        num_records=_whole(entry, "num_records", range(1, MAX_GROUP_RECORDS + 1)),
        first_step=_whole(entry, "first_step", _INT64),
        last_step=_whole(entry, "last_step", _INT64),
    )


def _whole(entry: Any, name: str, bounds: range) -> int:
    _demand(isinstance(entry, dict), f"holds something else where {name} should stand")
    value = entry.get(name)
    _demand(type(value) is int and value in bounds, f"has no {name} that could be one")
    return value  # type: ignore[no-any-return]


def _demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadSegmentError(otherwise)
