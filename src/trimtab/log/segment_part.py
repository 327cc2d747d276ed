"""A sealed segment as a part of a run: Parquet and JSON lines decoded into columns.

Enters: a segment's folder. Leaves: its records, kind by kind, in the order recorded, and one line for each stretch that
was left out. Invariants: no byte is decoded before its checksum was right; a wrong byte costs its row group; nothing
outside the folder is opened, and no link is followed; memory stays at a few row groups.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from trimtab.log import parquet
from trimtab.log.blocks import MAX_EVENTS_BYTES, decode_events
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.damage import MAX_LINES
from trimtab.log.parquet_kinds import IDS, KINDS, ROWS, STEPS, Columns, Kind
from trimtab.log.parts import SEGMENTS_NAME
from trimtab.log.planes import BadBlockError
from trimtab.log.segment_info import EVENTS_FILE, IDS_FILE, STEPS_FILE, FileInfo, Group, SegmentInfo
from trimtab.text import plain
from trimtab.values import Event, RunHeader

_CHUNK: Final = 1 << 20
_NOUNS: Final = {name: kind.noun for name, kind in KINDS.items()} | {EVENTS_FILE: "events"}
_READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)


class _Stretch(NamedTuple):
    """A group, and the number of records of its file before it."""

    first: int
    group: Group


class SegmentPart:
    """One segment, as `trimtab.log.run_source` reads any part.

    Args:
        path: Its folder.
        info: What its `segment.json` says.
        database: From `parquet.connect`; one for all segments of a run.
    """

    def __init__(self, path: Path, info: SegmentInfo, database: duckdb.DuckDBPyConnection) -> None:
        self.info = info
        self.name = f"{SEGMENTS_NAME}/{path.name}"
        self.rank = info.rank
        self._path = path
        self._database = database
        self._damage: dict[tuple[str, int], str] = {}
        self._is_whole: dict[str, bool] = {}
        self._is_good: dict[tuple[str, int], bool] = {}

    @property
    def size_bytes(self) -> int:
        """Size of its files."""
        return self.info.size_bytes

    @property
    def has_rows(self) -> bool:
        """Whether rows were recorded into it."""
        return self.info.has_rows

    def run_header(self) -> RunHeader | None:
        """What its first attempt header says of the run."""
        return next((header for _, header in sorted(self.info.attempts.items()) if header is not None), None)

    def has_records(self) -> bool:
        """Whether any row or step record is in it."""
        return self.has_rows or STEPS_FILE in self.info.files

    def notices(self) -> list[str]:
        """What was left out; looks at all checksums that have not been looked at yet."""
        for name in self.info.files:
            for _ in self._good(name):
                pass
        lines = [self._damage[key] for key in sorted(self._damage)]
        more = len(lines) - MAX_LINES
        return [*lines[:MAX_LINES], *([f"{self.name}: {more} more damaged places"] if more > 0 else [])]

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
    ) -> Iterator[tuple[int, RowColumns]]:
        """Row records, a row group at a time, each with the number of bytes done."""
        yield from self._blocks(ROWS, first_step=first_step, last_step=last_step, rows=rows, brief=brief)

    def step_blocks(self, *, brief: bool = False) -> Iterator[StepColumns]:
        """Step records, a row group at a time."""
        for _, columns in self._blocks(STEPS, brief=brief):
            yield columns

    def id_blocks(self) -> Iterator[IdColumns]:
        """Ids in the order handed over, a row group at a time."""
        for _, columns in self._blocks(IDS):
            yield columns

    def event_blocks(self) -> Iterator[tuple[int, list[Event]]]:
        """Events, some lines at a time, each with their size as JSON."""
        for stretch in self._good(EVENTS_FILE):
            group = stretch.group
            try:
                if group.size_bytes > MAX_EVENTS_BYTES:
                    raise BadBlockError(f"{group.size_bytes} bytes of lines")
                with self._open(EVENTS_FILE) as fd:
                    lines = b"".join(_range(fd, group.offset, group.size_bytes)).splitlines()
                events = decode_events(b"[" + b",".join(lines) + b"]")
                if len(events) != group.num_records:
                    raise BadBlockError(f"{len(events)} events where {group.num_records} should be")
            except (BadBlockError, OSError) as error:
                self._refuse(EVENTS_FILE, stretch, error)
                continue
            yield group.size_bytes, events

    def _blocks(
        self,
        kind: Kind[Columns],
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
    ) -> Iterator[tuple[int, Columns]]:
        """What the row groups of one file hold, each with its last byte; one that does not hold together is noted."""
        name = kind.file
        for stretch in self._good(name, first_step=first_step, last_step=last_step):
            first, group = stretch
            try:
                with self._open(name) as fd:
                    file = spelled(self._path / name, fd)
                    columns = parquet.read(
                        self._database,
                        kind,
                        file,
                        first,
                        group.num_records,
                        rank=self.rank,
                        first_step=first_step,
                        last_step=last_step,
                        rows=rows,
                        brief=brief,
                    )
            except (BadBlockError, duckdb.Error, OSError) as error:
                self._refuse(name, stretch, error)
                continue
            if columns.num_records:
                yield group.end, columns

    def _good(self, name: str, *, first_step: int | None = None, last_step: int | None = None) -> Iterator[_Stretch]:
        """The groups of a file that overlap the steps and whose checksum is right; each is looked at once."""
        file = self.info.files.get(name)
        if file is None or not self._looked_through(name, file):
            return
        first = 0
        for group in file.groups:
            stretch = _Stretch(first, group)
            first += group.num_records
            if (first_step is not None and group.last_step < first_step) or (
                last_step is not None and group.first_step > last_step
            ):
                continue
            if self._checked(name, stretch):
                yield stretch

    def _looked_through(self, name: str, file: FileInfo) -> bool:
        """Whether the file is there, whole outside its groups, and of the schema it should have; asked once."""
        if name not in self._is_whole:
            try:
                with self._open(name) as fd:
                    wrong = self._wrong(name, file, fd)
            except OSError as error:
                wrong = f"cannot be read ({error.strerror})"
            if wrong is not None:
                steps = [(group.first_step, group.last_step) for group in file.groups]
                lost = f"{file.num_records} {_NOUNS[name]}"
                if steps and name != IDS_FILE:
                    lost += f" of steps {min(low for low, _ in steps)} to {max(high for _, high in steps)}"
                self._damage[name, -1] = f"{self.name}/{name}: {wrong}; {lost} left out"
            self._is_whole[name] = wrong is None
        return self._is_whole[name]

    def _wrong(self, name: str, file: FileInfo, fd: int) -> str | None:
        """What is wrong with a file as a whole; None if nothing is."""
        size = os.fstat(fd).st_size
        if size != file.size_bytes:
            return f"has {size} bytes and should have {file.size_bytes}"
        if rest_crc(fd, file.groups, size) != file.rest_crc:
            return "damaged in its index, without which no record is found"
        if name in KINDS:
            try:
                found = parquet.group_sizes(self._database, KINDS[name], spelled(self._path / name, fd))
            except (BadBlockError, duckdb.Error) as error:
                return f"is not what it should be ({_first_line(error)})"
            if [num_records for num_records, _, _ in found] != [group.num_records for group in file.groups]:
                return "has other row groups than its segment says"
        return None

    def _checked(self, name: str, stretch: _Stretch) -> bool:
        key = (name, stretch.first)
        if key not in self._is_good:
            group = stretch.group
            try:
                with self._open(name) as fd:
                    self._is_good[key] = crc_of(fd, group.offset, group.size_bytes) == group.crc
                wrong = f"damaged from byte {group.offset} to byte {group.end}"
            except OSError as error:
                self._is_good[key], wrong = False, f"not readable from byte {group.offset} on ({error.strerror})"
            if not self._is_good[key]:
                self._damage[key] = f"{self.name}/{name}: {wrong}: {_contents(name, group)} left out"
        return self._is_good[key]

    def _refuse(self, name: str, stretch: _Stretch, error: Exception) -> None:
        """Notes that a group with the right checksum does not hold together, so that it is said once."""
        group = stretch.group
        self._damage[name, stretch.first] = (
            f"{self.name}/{name}: the bytes {group.offset} to {group.end} do not hold together "
            f"({_first_line(error)}); {_contents(name, group)} left out"
        )

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """A descriptor of one file of the folder; a link or a pipe in its place is refused with `OSError`."""
        fd = os.open(self._path / name, _READ_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "it is no file")
            yield fd
        finally:
            os.close(fd)


def spelled(path: Path, fd: int) -> str:
    """The open file as DuckDB takes it: by its descriptor, because a path may hold patterns, or bytes that are no text.

    So DuckDB also reads the very file whose checksum was right. Without `/dev/fd`: the path.
    """
    by_descriptor = f"/dev/fd/{fd}"
    return by_descriptor if Path(by_descriptor).exists() else str(path)


def crc_of(fd: int, offset: int, size_bytes: int, crc: int = 0) -> int:
    """CRC-32 of a stretch of an open file, continuing one; of what is there, if the file ends early."""
    for chunk in _range(fd, offset, size_bytes):
        crc = zlib.crc32(chunk, crc)
    return crc


def rest_crc(fd: int, groups: tuple[Group, ...], size_bytes: int) -> int:
    """CRC-32 of all bytes of an open file that are in no group."""
    crc, start = 0, 0
    for group in groups:
        crc = crc_of(fd, start, group.offset - start, crc)
        start = group.end
    return crc_of(fd, start, size_bytes - start, crc)


def _range(fd: int, offset: int, size_bytes: int) -> Iterator[bytes]:
    os.lseek(fd, offset, os.SEEK_SET)
    while size_bytes > 0:
        chunk = os.read(fd, min(_CHUNK, size_bytes))
        if not chunk:
            return
        size_bytes -= len(chunk)
        yield chunk


def _contents(name: str, group: Group) -> str:
    steps = "" if name == IDS_FILE else f" of steps {group.first_step} to {group.last_step}"
    return f"{group.num_records} {_NOUNS[name]}{steps}"


def _first_line(error: Exception) -> str:
    return plain(str(error).partition("\n")[0])[:200]
