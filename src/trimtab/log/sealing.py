"""Turns a closed journal into a sealed segment, so that at every moment one of the two is whole.

    rank-00000.000001.journal -> segments/rank-00000.000001.new/ -> read back, compared -> synced -> renamed -> journal
                                                                                                     deleted
Enters: a closed journal that nobody writes. Leaves: a segment with the same records, or the journal as it was.
Invariants: the journal is deleted only when what was read back from the segment is bit by bit what the journal holds,
and is on the disk; a journal with damage is never deleted; memory stays at a few blocks, whatever the journal's size.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np

from trimtab.disk import NEW_SUFFIX, sync_path
from trimtab.errors import LogError
from trimtab.log import parquet
from trimtab.log.blocks import event_text
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.journal_part import JournalPart
from trimtab.log.parquet_kinds import KINDS, Kind
from trimtab.log.parts import SEGMENTS_NAME, Part, PartReader, read_info, segment_name
from trimtab.log.planes import BadBlockError
from trimtab.log.segment_info import (
    EVENTS_FILE,
    INFO_NAME,
    BadSegmentError,
    FileInfo,
    Group,
    SegmentInfo,
    dump_info,
)
from trimtab.log.segment_part import SegmentPart, crc_of, rest_crc
from trimtab.values import Event

PIECE_RECORDS: Final = 1 << 19
"""Records that are held and handed to DuckDB at a time: 20 MB of rows."""

_LINES_BYTES: Final = 1 << 20
"""Bytes of events in one group, unless a single event is larger."""

_Records = RowColumns | StepColumns | IdColumns


class NotSealedError(Exception):
    """A journal could not become a segment, and stays as it is; the message says why.

    Attributes:
        is_of_journal: Whether the reason lies in this very journal, so that another one may be sealed all the same.
    """

    def __init__(self, why: str, *, is_of_journal: bool) -> None:
        super().__init__(why)
        self.is_of_journal = is_of_journal


def seal(folder: Path, part: Part) -> Iterator[None]:
    """Seals one closed journal of a run folder; yields between pieces, so that the caller may do something else.

    Args:
        folder: The run folder.
        part: A part with a journal that nobody writes any more. With a segment beside it, a writer was stopped just
            before it would have deleted the journal.

    Raises:
        NotSealedError: It stays a journal.
    """
    assert part.journal is not None
    segment = folder / SEGMENTS_NAME / segment_name(part.rank, part.number)
    draft = segment.with_name(segment.name + NEW_SUFFIX)
    try:
        journal = JournalPart(part.journal)
        if part.segment is None:
            shutil.rmtree(draft, ignore_errors=True)  # of a writer that was killed
            draft.mkdir(parents=True)
            database = parquet.connect(draft)
            held = _Sums()
            yield from _fill(draft, part, journal, held, database)
            yield from _compare(draft, held, database)
            database.close()
            for name in (*_written(draft), "."):
                sync_path(draft / name)
            draft.rename(segment)
            sync_path(segment.parent)
            sync_path(folder)
        else:
            held = _Sums()
            yield from held.add_all(journal)
            yield from _compare(part.segment, held, parquet.connect())
        part.journal.unlink()
    except (BadSegmentError, BadBlockError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise NotSealedError(f"{part.journal.name}: {error}", is_of_journal=True) from error
    except (OSError, LogError, duckdb.Error, MemoryError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise NotSealedError(str(error) or type(error).__name__, is_of_journal=False) from error


class _Sums:
    """Checksums of every column of records that stream by, however they are cut into blocks."""

    def __init__(self) -> None:
        self._crcs: dict[tuple[str, str], int] = {}
        self.num_records: dict[str, int] = {}

    def add(self, name: str, columns: _Records) -> None:
        """Adds records of the file of this name."""
        self.num_records[name] = self.num_records.get(name, 0) + columns.num_records
        data: bytes | memoryview
        for column, values in columns._asdict().items():
            if values.dtype == np.object_:
                data = "".join(f"{value!r}\n" for value in values).encode()
            else:
                data = np.ascontiguousarray(values).view(np.uint8).data if values.size else b""
            self._add_bytes(name, column, data)

    def add_events(self, events: list[Event]) -> None:
        """Adds events."""
        self.num_records[EVENTS_FILE] = self.num_records.get(EVENTS_FILE, 0) + len(events)
        self._add_bytes(EVENTS_FILE, "", "".join(f"{event_text(event)}\n" for event in events).encode())

    def add_all(self, part: PartReader) -> Iterator[None]:
        """Adds all records of a part; yields between blocks. Raises `BadBlockError` if anything had to be left out."""
        for name, kind in KINDS.items():
            for columns in kind.blocks(part):
                self.add(name, columns)
                yield
        for _, events in part.event_blocks():
            self.add_events(events)
            yield
        _demand_nothing_left_out(part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sums) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def _add_bytes(self, name: str, column: str, data: bytes | memoryview) -> None:
        self._crcs[name, column] = zlib.crc32(data, self._crcs.get((name, column), 0))


def _demand_nothing_left_out(part: PartReader) -> None:
    found = part.notices()
    if found:
        raise BadBlockError(found[0])


def _compare(segment: Path, held: _Sums, database: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Reads a segment as any reader would; it must hold what the journal held."""
    found = _Sums()
    yield from found.add_all(SegmentPart(segment, read_info(segment), database))
    if found != held:
        raise BadBlockError("the segment reads back as something else than the journal holds")


def _fill(
    draft: Path, part: Part, journal: JournalPart, held: _Sums, database: duckdb.DuckDBPyConnection
) -> Iterator[None]:
    """Writes the files of a segment, `segment.json` last."""
    _demand_nothing_left_out(journal)  # before any work; blocks that do not hold together are found by decoding them
    yield
    for name, kind in KINDS.items():
        pieces = _pieces(kind.blocks(journal))
        columns = next(pieces, None)
        drafts: list[Path] = []
        while columns is not None:
            held.add(name, columns)
            following = next(pieces, None)
            if following is None and not drafts:
                parquet.write(database, kind, columns, draft / name)
            else:
                drafts.append(draft / f"{name}.{len(drafts)}")
                parquet.write(database, kind, columns, drafts[-1], compression="uncompressed")
            columns = following
            yield
        if drafts:
            parquet.join(database, kind, drafts, draft / name)
            for file in drafts:
                file.unlink()
            yield
    events = _write_events(draft / EVENTS_FILE, journal, held)
    _demand_nothing_left_out(journal)
    files = {name: _layout(draft / name, kind, database) for name, kind in KINDS.items() if held.num_records.get(name)}
    if events:
        files[EVENTS_FILE] = FileInfo(events[-1].end, 0, tuple(events))
    run = journal.run_header()
    info = SegmentInfo(
        run_id=None if run is None else run.run_id,
        rank=part.rank,
        number=part.number,
        has_rows=journal.has_rows,
        attempts=journal.attempts(),
        files=files,
    )
    (draft / INFO_NAME).write_bytes(dump_info(info))


def _pieces(blocks: Iterator[_Records]) -> Iterator[_Records]:
    """The records in pieces of about `PIECE_RECORDS`."""
    waiting: list[_Records] = []
    num_waiting = 0
    for columns in blocks:
        waiting.append(columns)
        num_waiting += columns.num_records
        if num_waiting >= PIECE_RECORDS:
            yield _concat(waiting)
            waiting, num_waiting = [], 0
    if num_waiting:
        yield _concat(waiting)


def _concat(blocks: list[_Records]) -> _Records:
    return type(blocks[0]).concat(blocks)  # type: ignore[arg-type]


def _write_events(path: Path, journal: JournalPart, held: _Sums) -> list[Group]:
    """Writes the events as JSON lines, and gives groups of them; no file where there are none."""
    lines: list[bytes] = []
    steps: list[int] = []
    groups: list[Group] = []
    size = 0
    for attempt, events in journal.events_by_attempt():
        held.add_events(events)
        for event in events:
            line = f'{{"attempt":{attempt},{event_text(event)[1:]}\n'.encode("ascii")
            if lines and size + len(line) > _LINES_BYTES:
                groups.append(_append_lines(path, lines, steps))
                lines, steps, size = [], [], 0
            lines.append(line)
            steps.append(event.step)
            size += len(line)
    if lines:
        groups.append(_append_lines(path, lines, steps))
    return groups


def _append_lines(path: Path, lines: list[bytes], steps: list[int]) -> Group:
    data = b"".join(lines)
    with path.open("ab") as file:
        offset = file.tell()
        file.write(data)
    return Group(offset, len(data), zlib.crc32(data), len(lines), min(steps), max(steps))


def _layout(path: Path, kind: Kind[Any], database: duckdb.DuckDBPyConnection) -> FileInfo:
    """Where the row groups of a file are, what steps they hold, and the checksums of their bytes."""
    with path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        groups = tuple(
            Group(start, end - start, crc_of(fd, start, end - start), num_records, first, last)
            for (num_records, start, end), (first, last) in zip(
                parquet.group_sizes(database, kind, str(path)), parquet.group_steps(database, str(path)), strict=True
            )
        )
        return FileInfo(size, rest_crc(fd, groups, size), groups)


def _written(draft: Path) -> list[str]:
    return sorted(entry.name for entry in draft.iterdir() if entry.is_file())
