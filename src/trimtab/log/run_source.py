"""Reads the run folders that Trimtab writes: `run.json` and the parts of each rank, sealed or not.

Enters: a run folder, or one journal of it. Leaves: a `Source`. Invariants: damage raises nothing, and what it cost is
said in `notices()`; memory stays at a few blocks; the log is that of one moment, also while the run goes on writing and
sealing: no record stands in it twice, and none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log import folder
from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.log.journal_part import JournalPart
from trimtab.log.parts import ACTIVE, Part, PartReader, list_parts, missing_numbers, other_files, read_info
from trimtab.log.rank_events import merged
from trimtab.log.segment_info import BadSegmentError, SegmentInfo
from trimtab.log.source import RecordedEvent
from trimtab.values import Event, RunHeader

if TYPE_CHECKING:
    import duckdb

    from trimtab.log.segment_part import SegmentPart

_MAX_HELD: Final = 256
"""Journals that are held open at a time; a run of more ranks is reread if it seals one while it is read."""

_MAX_LOOKS: Final = 100
"""Looks at a folder that goes on changing: a run seals a journal a rank in minutes, not in milliseconds."""


_FREE_BYTES: Final = 256 << 20
_BYTES_PER_BYTE: Final = 64
"""What is held whole, steps, events and ids, may take 256 MiB of each part, or 64 times the part's size: real records
take up to 25 times theirs, and a file that is made to hurt, a million times."""

_STEP_BYTES: Final = 96
_JSON_SIZES: Final = 10
_ID_BYTES: Final = 100

_MAX_ATTEMPT: Final = 0xFFFF

_Block = TypeVar("_Block")


class RunSource:
    """The log of a run folder, or one journal of it.

    Args:
        path: The run folder.
        journal: One journal, if only this one is to be read.
        notices: What is to be said first.
        rank: One rank, if only what it recorded is to be read; None: all.

    Raises:
        LogError: There is neither a header nor a part that names the run, or a newer version wrote it.
    """

    def __init__(
        self, path: Path, *, journal: Path | None = None, notices: list[str] | None = None, rank: int | None = None
    ) -> None:
        self._rank = rank
        header, wrong = folder.read_header(path)
        self._notices = [*(notices or []), *wrong]
        self._run_id = header.run_id if header is not None else None
        self._path = path if journal is None else journal
        self._format = "run" if journal is None else "journal"
        self._database: duckdb.DuckDBPyConnection | None = None
        if journal is not None:
            self._parts: list[PartReader] = [JournalPart(journal, run_id=self._run_id)]
        else:
            self._parts = self._look(path)
        self._header = self._settle_header(header)
        self._say_missing_ranks()

    @property
    def header(self) -> RunHeader:
        """What `run.json` says, else what the first attempt header in a part says."""
        return self._header

    @property
    def format(self) -> str:
        """Whether the whole run is read, or one journal of it."""
        return self._format

    @property
    def path(self) -> str:
        """The run folder or journal."""
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """Size of all parts read, when they were opened."""
        return sum(part.size_bytes for part in self._parts)

    @property
    def has_rows(self) -> bool:
        """Whether any rows were recorded; reads up to the first."""
        return any(part.has_rows for part in self._parts)

    def notices(self) -> list[str]:
        """What was left out, file by file. Reads what has not been read yet."""
        return [*self._notices, *(line for part in self._parts for line in part.notices())]

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks of about 131,072, each of one rank; see `Source.row_blocks`."""
        done = 0
        for part in self._parts:
            for end, columns in part.row_blocks(first_step=first_step, last_step=last_step, rows=rows, brief=brief):
                if progress is not None:
                    progress(done + end)
                yield columns
            done += part.size_bytes
            if progress is not None:
                progress(done)

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """All step records, rank by rank, in the order recorded."""
        blocks = (
            columns
            for part in self._parts
            for columns in self._within_reason(
                part, ((_STEP_BYTES * c.num_records, c) for c in part.step_blocks(brief=brief))
            )
        )
        return StepColumns.concat_brief(blocks) if brief else StepColumns.concat(blocks)

    def steps_between(self, first_step: int, last_step: int) -> StepColumns:
        """The step records of these steps, as `step_columns` gives them; memory is that of what is asked for."""
        return StepColumns.concat(
            columns.take((columns.step >= first_step) & (columns.step <= last_step))
            for part in self._parts
            for columns in part.step_blocks()
        )

    def step_blocks(self) -> Iterator[StepColumns]:
        """All step records, rank by rank, in the order recorded, block by block."""
        for part in self._parts:
            yield from part.step_blocks()

    def event_list(self, *, without: Collection[str] = ()) -> list[Event]:
        """All events, by time; one that several ranks recorded alike stands there once."""
        found = (
            (part.rank, event)
            for part in self._parts
            for events in self._within_reason(part, _kept_events(part, without=without))
            for event in events
        )
        if len({part.rank for part in self._parts}) > 1:
            return merged(found)
        return sorted((event for _, event in found), key=lambda event: event.time)

    def event_stream(self, kinds: Collection[str]) -> Iterator[RecordedEvent]:
        """Events of these kinds, rank by rank in the order recorded."""
        attempts: dict[int, int] = {}
        for part in self._parts:
            for _, events in part.event_blocks():
                for event in events:
                    # So each attempt after the first begins on rank 0; a segment keeps no other word of it.
                    if event.kind == "resume":
                        attempts[part.rank] = _attempt_of(event, otherwise=attempts.get(part.rank, 1))
                    if event.kind in kinds:
                        yield RecordedEvent(event, part.rank, attempts.get(part.rank, 1) if part.rank == 0 else None)

    def side_columns(self) -> SideColumns:
        """Nothing: what we measure beside the steps stands in events."""
        return SideColumns.empty()

    def id_columns(self) -> IdColumns:
        """What the rows of all ranks are beside their number, each row once, ascending."""
        return IdColumns.concat(
            columns
            for part in self._parts
            for columns in self._within_reason(part, ((_size_of_ids(c), c) for c in part.id_blocks()))
        ).latest()

    def restarts(self) -> tuple[int, ...]:
        """None: an attempt continues the run before it."""
        return ()

    def _within_reason(self, part: PartReader, blocks: Iterator[tuple[int, _Block]]) -> Iterator[_Block]:
        """The blocks, given with what they take in memory, up to what a part of its size could honestly hold."""
        left = max(_FREE_BYTES, _BYTES_PER_BYTE * part.size_bytes)
        for size, block in blocks:
            left -= size
            if left < 0:
                line = f"{part.name}: its {part.size_bytes} bytes hold more than any run records; the rest was left out"
                if line not in self._notices:
                    self._notices.append(line)
                return
            yield block

    def _look(self, path: Path) -> list[PartReader]:
        """The parts at one moment: looked at anew if one was sealed, and its journal deleted, while we looked."""
        try:
            for _ in range(_MAX_LOOKS):
                said = len(self._notices)
                found = self._open_all(path)
                if found is not None:
                    return found
                del self._notices[said:]
        except OSError as error:
            raise LogError(f"{path} cannot be listed: {error.strerror}") from error
        raise LogError(f"{path} changed {_MAX_LOOKS} times while it was listed; read it when the run has ended")

    def _open_all(self, path: Path) -> list[PartReader] | None:
        """All parts, opened; None where they changed meanwhile."""
        parts = self._list(path)
        hold = sum(part.journal is not None for part in parts) <= _MAX_HELD
        opened: list[PartReader] = []
        inodes: dict[int, tuple[int, int]] = {}
        for part in parts:
            try:
                reader = self._open(part, hold=hold)
            except LogError:
                if part.journal is not None and not part.journal.exists():
                    return None
                raise
            if isinstance(reader, JournalPart) and part.number == ACTIVE:
                inodes[part.rank] = reader.inode
            opened += [] if reader is None else [reader]
        # A rank whose newest journal is another file by now closed the one that we opened: it may stand in two places.
        after = self._list(path)
        if [part[:2] for part in after] != [part[:2] for part in parts]:
            return None
        for part in after:
            if part.journal is not None and part.number == ACTIVE and _inode(part.journal) != inodes.get(part.rank):
                return None
        self._notices += [f"{name} is a link or no file, and was left out" for name in other_files(path)]
        for rank, numbers in missing_numbers(parts).items():
            lost = f"{len(numbers)} parts of rank {rank} are missing, the first of them part {numbers[0]}"
            self._notices.append(f"{lost}: their records are lost")
        return opened

    def _list(self, path: Path) -> list[Part]:
        return [part for part in list_parts(path) if self._rank in (None, part.rank)]

    def _open(self, part: Part, *, hold: bool) -> PartReader | None:
        """The sealed segment of a part, else its journal; None where neither can be read, which is said."""
        if part.segment is not None:
            try:
                info = read_info(part.segment)
                if self._run_id is not None and info.run_id not in (None, self._run_id):
                    raise BadSegmentError("belongs to another run")
            except BadSegmentError as error:
                instead = " and its journal read instead" if part.journal is not None else ""
                name = part.segment.relative_to(part.segment.parents[1])
                self._notices.append(f"{name}: its segment.json {error}; the segment was left out{instead}")
            else:
                return self._segment(part.segment, info)
        if part.journal is None:
            return None
        return JournalPart(part.journal, rank=part.rank, run_id=self._run_id, hold=hold)

    def _segment(self, path: Path, info: SegmentInfo) -> SegmentPart:
        # Here, because it loads DuckDB, which a log without segments does not need.
        from trimtab.log.parquet import connect
        from trimtab.log.segment_part import SegmentPart

        self._database = self._database or connect()
        return SegmentPart(path, info, self._database)

    def _settle_header(self, header: RunHeader | None) -> RunHeader:
        if header is not None:
            return header
        for part in self._parts:
            found = part.run_header()
            if found is not None:
                self._notices.append(f"the run's header was taken from {part.name}")
                return found
        if any(part.has_records() for part in self._parts):
            self._notices.append("nothing says which run this is; its records are read all the same")
            return RunHeader(run_id=None, backend="unknown")
        raise LogError(
            f"{self._path} is no readable log: {'; '.join([*self._notices, 'and no journal or segment holds a block'])}"
        )

    def _say_missing_ranks(self) -> None:
        if self._rank is not None:
            return
        if self._format == "journal":
            if self._header.world_size > 1:
                of = f"{self._path.name} is of one of {self._header.world_size} ranks"
                self._notices.append(f"{of}: the rows of the others are not read")
            return
        ranks = {part.rank for part in self._parts}
        missing = self._header.world_size - len(ranks)
        if ranks and missing > 0:
            self._notices.append(
                f"{missing} of {self._header.world_size} ranks have no journal in {self._path}: their rows are missing"
            )


def _kept_events(part: PartReader, *, without: Collection[str]) -> Iterator[tuple[int, list[Event]]]:
    """The events of a part, block by block, each with what those that are kept of it take in memory."""
    for size, events in part.event_blocks():
        kept = [event for event in events if event.kind not in without] if without else events
        if kept:
            yield _JSON_SIZES * size * len(kept) // len(events), kept


def _attempt_of(event: Event, *, otherwise: int) -> int:
    """The attempt that an event `resume` begins."""
    attempt = event.facts.get("attempt")
    return attempt if type(attempt) is int and 0 < attempt <= _MAX_ATTEMPT else otherwise


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _size_of_ids(columns: IdColumns) -> int:
    return _ID_BYTES * columns.num_records + sum(len(name) for name in columns.name if name is not None)
