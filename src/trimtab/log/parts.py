"""Which files of a run folder hold which part of what a rank recorded, in order.

    segments/rank-00000.000001/     sealed, or                    parts 1, 2, ... of rank 0
    rank-00000.000002.journal       closed, waits to be sealed
    rank-00000.journal              being written, the newest part

Enters: a run folder. Leaves: its parts. Invariant: a part stands once in the list, whatever moment of a rotation the
folder is in: a sealed segment makes the journal of its number void, and a folder `.new` is none yet.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.disk import NEW_SUFFIX
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.segment_info import INFO_NAME, MAX_INFO_SIZE, BadSegmentError, SegmentInfo, load_info
from trimtab.values import Event, RunHeader

SEGMENTS_NAME: Final = "segments"

ACTIVE: Final = 1_000_000
"""The number of the journal that is being written: behind all others."""

_JOURNAL: Final = re.compile(r"rank-(\d{5})(?:\.(\d{6}))?\.journal\Z", re.ASCII)
_NO_NUMBER: Final = "000000"
_SEGMENT: Final = re.compile(r"rank-(\d{5})\.(\d{6})\Z", re.ASCII)


class Part(NamedTuple):
    """One part of what a rank recorded.

    Attributes:
        rank: The rank.
        number: Its place, 1 and up; `ACTIVE` for the journal that is being written.
        journal: The file, where it is a journal.
        segment: The folder, where it was sealed. With a journal beside it, that one has not been deleted yet.
    """

    rank: int
    number: int
    journal: Path | None = None
    segment: Path | None = None


class PartReader(Protocol):
    """A part opened for reading, whether it was sealed or not; what was left out of it is said in `notices`."""

    @property
    def name(self) -> str:
        """What notices call it."""

    @property
    def rank(self) -> int:
        """The rank that recorded it."""

    @property
    def size_bytes(self) -> int:
        """Size of its files when it was opened."""

    @property
    def has_rows(self) -> bool:
        """Whether rows were recorded into it."""

    def run_header(self) -> RunHeader | None:
        """What its first attempt header says of the run."""

    def has_records(self) -> bool:
        """Whether any row or step record is in it."""

    def notices(self) -> list[str]:
        """What was left out; reads what has not been read yet."""

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
    ) -> Iterator[tuple[int, RowColumns]]:
        """Row records in blocks, each with the number of bytes done; for the arguments see `Source.row_blocks`."""

    def step_blocks(self, *, brief: bool = False) -> Iterator[StepColumns]:
        """Step records in blocks; for `brief` see `Source.step_columns`."""

    def id_blocks(self) -> Iterator[IdColumns]:
        """Ids in the order handed over, in blocks."""

    def event_blocks(self) -> Iterator[tuple[int, list[Event]]]:
        """Events in blocks, each with its size as JSON."""


def journal_name(rank: int, number: int = ACTIVE) -> str:
    """File name of a rank's journal: `rank-00000.journal`; of a closed one: `rank-00000.000001.journal`."""
    return f"rank-{rank:05d}.journal" if number == ACTIVE else f"rank-{rank:05d}.{number:06d}.journal"


def segment_name(rank: int, number: int) -> str:
    """Folder name of a segment: `rank-00000.000001`."""
    return f"rank-{rank:05d}.{number:06d}"


def list_parts(path: Path) -> list[Part]:
    """The parts in a run folder, rank by rank, in the order recorded.

    Raises:
        OSError: The folder cannot be listed.
    """
    # Journals first: one that is being sealed while we look is seen as a journal, or else as the segment it became.
    journals = {(rank, number): file for rank, number, file in _journals(path)}
    segments = {(rank, number): folder for rank, number, folder in _segments(path)}
    return [Part(*key, journals.get(key), segments.get(key)) for key in sorted({*journals, *segments})]


def closed_journals(journal: Path) -> list[Path]:
    """The other journals, closed and not deleted yet, of the rank whose journal is written at this path.

    Raises:
        OSError: The folder cannot be listed.
    """
    own = _JOURNAL.match(journal.name)
    return [
        file
        for rank, number, file in _journals(journal.parent)
        if own is not None and rank == int(own[1]) and number != ACTIVE and file.name != journal.name
    ]


def is_newest(journal: Path) -> bool:
    """Whether a journal, by its name, is the newest part of its rank: the one that an end of the run stands in."""
    match = _JOURNAL.match(journal.name)
    return match is not None and match[2] is None


def next_number(path: Path, rank: int) -> int:
    """The number that the next closed journal of a rank takes.

    Raises:
        OSError: The folder cannot be listed.
    """
    drafts = (_SEGMENT.match(entry.name.removesuffix(NEW_SUFFIX)) for entry in _inside(path / SEGMENTS_NAME))
    taken = [int(match[2]) for match in drafts if match is not None and int(match[1]) == rank]
    taken += [part.number for part in list_parts(path) if part.rank == rank and part.number != ACTIVE]
    return 1 + max(taken, default=0)


def missing_numbers(parts: list[Part]) -> dict[int, list[int]]:
    """The parts of each rank that must have been there, where any are missing: numbers are given without a hole."""
    missing = {}
    for rank in {part.rank for part in parts}:
        numbers = {part.number for part in parts if part.rank == rank and part.number != ACTIVE}
        holes = [number for number in range(1, max(numbers, default=0)) if number not in numbers]
        if holes:
            missing[rank] = holes
    return missing


def other_files(path: Path) -> list[str]:
    """Names of entries that bear a part's name and are none: a journal that is no file, a segment that is a link.

    Raises:
        OSError: The folder cannot be listed.
    """
    names = [
        entry.name
        for entry in path.iterdir()
        if (match := _JOURNAL.match(entry.name)) and (match[2] == _NO_NUMBER or not _is(entry.stat, stat.S_ISREG))
    ]
    segments = path / SEGMENTS_NAME
    if segments.is_symlink():
        return [*sorted(names), SEGMENTS_NAME]
    inside = [
        entry.name
        for entry in _inside(segments)
        if (match := _SEGMENT.match(entry.name)) and (match[2] == _NO_NUMBER or not _is(entry.lstat, stat.S_ISDIR))
    ]
    return [*sorted(names), *(f"{SEGMENTS_NAME}/{name}" for name in sorted(inside))]


def _is(status: Callable[[], os.stat_result], kind: Callable[[int], bool]) -> bool:
    """Whether an entry is of this kind; True for one that is gone by now, of which nothing is to be said."""
    try:
        return kind(status().st_mode)
    except FileNotFoundError:
        return True


def read_info(segment: Path) -> SegmentInfo:
    """What a segment's `segment.json` says.

    Raises:
        BadSegmentError: There is none, it is broken, or it belongs to another place.
    """
    file = segment / INFO_NAME
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise BadSegmentError("is no file")
        with file.open("rb") as stream:
            info = load_info(stream.read(MAX_INFO_SIZE + 1))
    except OSError as error:
        raise BadSegmentError(f"cannot be read ({error.strerror})") from error
    if segment_name(info.rank, info.number) != segment.name.removesuffix(NEW_SUFFIX):
        raise BadSegmentError(f"is that of part {info.number} of rank {info.rank}: a copy")
    return info


def _journals(path: Path) -> Iterator[tuple[int, int, Path]]:
    for entry in path.iterdir():
        match = _JOURNAL.match(entry.name)
        if match is not None and match[2] != _NO_NUMBER and entry.is_file():
            yield int(match[1]), ACTIVE if match[2] is None else int(match[2]), entry


def _segments(path: Path) -> Iterator[tuple[int, int, Path]]:
    folder = path / SEGMENTS_NAME
    # A link leads out of the run folder: neither `segments` nor a segment may be one.
    for entry in [] if folder.is_symlink() else _inside(folder):
        match = _SEGMENT.match(entry.name)
        if match is not None and match[2] != _NO_NUMBER and entry.is_dir() and not entry.is_symlink():
            yield int(match[1]), int(match[2]), entry


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
