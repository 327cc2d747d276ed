"""Opens a log, whatever wrote it, and gives it back as columns.

Enters: a path: a run folder, one of its files, an output folder, or a foreign log. Leaves: a `Log`. Invariant: what is
left out is said in `notices()`; damage in a journal raises nothing; memory stays at a few blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np

from trimtab.errors import LogError
from trimtab.log import blocks, folder, table
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.frames import KIND_EVENTS, KIND_ROWS, KIND_STEPS, FrameHeader, inflate
from trimtab.log.planes import BadBlockError
from trimtab.log.scan import Journal, starts_like_a_journal
from trimtab.values import Event, RunHeader

# Small blocks of a slow run are handed on together: numpy's fixed cost a call is then nothing, 5 MB are held.
_ROWS_AT_ONCE: Final = 1 << 17

_Columns = TypeVar("_Columns")


class Log(Protocol):
    """One run's log, opened for reading; nothing in it changes the files."""

    @property
    def header(self) -> RunHeader:
        """What is known of the run."""

    @property
    def path(self) -> str:
        """What was read: a run folder or a file."""

    @property
    def size_bytes(self) -> int:
        """Size of all files of the log, the whole of what `progress` counts up to."""

    @property
    def has_rows(self) -> bool:
        """Whether any row record is in it."""

    def notices(self) -> list[str]:
        """What a reader should know: damage with file and byte, missing ranks. Complete after a full pass."""

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks, as they were recorded, rank by rank; memory stays bounded.

        Args:
            first_step: Blocks wholly before this step may be left out; the caller still filters.
            last_step: Blocks wholly behind this step may be left out likewise.
            progress: Called now and then with the number of bytes done.
        """

    def step_columns(self) -> StepColumns:
        """All step records, rank by rank, in the order recorded."""

    def event_list(self) -> list[Event]:
        """All events, by time."""

    def steps(self) -> table.Table:
        """One line a step and attempt, ranks put together (FORMAT.md, "Tables")."""

    def rows(self) -> table.Table:
        """One line a row record."""

    def events(self) -> table.Table:
        """One line an event."""


def open_log(path: str | os.PathLike[str]) -> Log:
    """Opens the log at `path`.

    Args:
        path: A run folder, its `run.json` or one of its journals; an output folder or its `trimtab` folder (the newest
            run is opened, and the others are said); a `rewind.jsonl`, or a folder that holds one.

    Returns:
        The log; reading starts when it is asked for something.

    Raises:
        LogError: Nothing readable is there, or it was written by a newer version.
    """
    place = Path(os.path.abspath(path))
    if place.is_dir():
        return _open_folder(place)
    if not place.is_file():
        found = "is neither a file nor a folder" if place.exists() else "does not exist"
        raise LogError(f"{place} {found}; expected a run folder, a journal or a rewind.jsonl")
    if place.name == folder.HEADER_NAME:
        return _open_folder(place.parent)
    if place.suffix == ".journal" or starts_like_a_journal(place):
        return RunLog(place.parent, journal=place)
    return _open_foreign(place)


def _open_folder(place: Path) -> Log:
    if folder.is_run_folder(place):
        return RunLog(place)
    out = place.parent if place.name == folder.RUNS_NAME and not (place / folder.RUNS_NAME).is_dir() else place
    runs = folder.run_folders(out)
    if runs:
        others = [f"{len(runs)} runs are in {out}; the newest, {runs[-1].name}, was read"] if len(runs) > 1 else []
        return RunLog(runs[-1], notices=others)
    for name in ("rewind.jsonl", "rewind.jsonl.1"):
        if (place / name).is_file():
            return _open_foreign(place / name)
    raise LogError(f"no log in {place}; expected {folder.HEADER_NAME}, rank-*.journal, trimtab/<run> or rewind.jsonl")


def _open_foreign(place: Path) -> Log:
    from trimtab.log.foreign.rewind_jsonl import open_rewind_jsonl

    return open_rewind_jsonl(place)


class RunLog:
    """The log of a run folder, or one journal of it.

    Args:
        path: The run folder.
        journal: One journal, if only this one is to be read.
        notices: What is to be said first.

    Raises:
        LogError: There is neither a header nor a journal that names the run, or a newer version wrote it.
    """

    def __init__(self, path: Path, *, journal: Path | None = None, notices: list[str] | None = None) -> None:
        header, wrong = folder.read_header(path)
        self._notices = [*(notices or []), *wrong]
        run_id = header.run_id if header is not None else None
        try:
            files = [journal] if journal is not None else [file for _, file in folder.journals(path)]
        except OSError as error:
            raise LogError(f"{path} cannot be listed: {error.strerror}") from error
        self._journals = [Journal(file, run_id=run_id) for file in files]
        self._path = path if journal is None else journal
        self._header = self._settle_header(header)
        if journal is None:
            self._say_missing_ranks(files)

    @property
    def header(self) -> RunHeader:
        """What `run.json` says, else what the first attempt header in a journal says."""
        return self._header

    @property
    def path(self) -> str:
        """The run folder or journal."""
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """Size of all journals read, when they were opened."""
        return sum(journal.size_bytes for journal in self._journals)

    @property
    def has_rows(self) -> bool:
        """Whether any rows block is in it; reads up to the first."""
        return any(next(journal.frames((KIND_ROWS,)), None) is not None for journal in self._journals)

    def notices(self) -> list[str]:
        """What was left out, file by file. Reads what has not been read yet."""
        for journal in self._journals:
            journal.scan()
        return [*self._notices, *(line for journal in self._journals for line in journal.notices())]

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks of about 131,072, each of one rank; see `Log.row_blocks`."""
        done = 0
        for journal in self._journals:
            waiting: list[tuple[FrameHeader, blocks.MicroColumns]] = []
            num_waiting = 0
            for header, payload in journal.frames((KIND_ROWS,), first_step=first_step, last_step=last_step):
                raw = _inflate(journal, header, payload)
                columns = None if raw is None else _decode(journal, header, blocks.decode_rows, raw)
                if columns is None:
                    continue
                waiting.append((header, columns))
                num_waiting += columns.row.size
                if num_waiting >= _ROWS_AT_ONCE:
                    if progress is not None:
                        progress(done + header.end)
                    yield _row_columns(waiting)
                    waiting, num_waiting = [], 0
            if num_waiting:
                yield _row_columns(waiting)
            done += journal.size_bytes
            if progress is not None:
                progress(done)

    def step_columns(self) -> StepColumns:
        """All step records, rank by rank, in the order recorded."""
        parts: list[StepColumns] = []
        for journal in self._journals:
            for header, payload in journal.frames((KIND_STEPS,)):
                raw = _inflate(journal, header, payload)
                columns = None if raw is None else _decode(journal, header, blocks.decode_steps, raw)
                if columns is not None:
                    parts.append(_step_columns(header, columns))
        return StepColumns.concat(parts)

    def event_list(self) -> list[Event]:
        """All events of all ranks, by time."""
        found: list[Event] = []
        for journal in self._journals:
            for header, payload in journal.frames((KIND_EVENTS,)):
                raw = _inflate(journal, header, payload)
                found += (None if raw is None else _decode(journal, header, blocks.decode_events, raw)) or []
        return sorted(found, key=lambda event: event.time)

    def steps(self) -> table.Table:
        """One line a step and attempt, ranks put together (FORMAT.md, "Tables")."""
        return table.steps_table(self)

    def rows(self) -> table.Table:
        """One line a row record."""
        return table.rows_table(self)

    def events(self) -> table.Table:
        """One line an event."""
        return table.events_table(self)

    def _settle_header(self, header: RunHeader | None) -> RunHeader:
        if header is not None:
            return header
        for journal in self._journals:
            journal.scan()
            if journal.header is not None:
                self._notices.append(f"the run's header was taken from {journal.path.name}")
                return journal.header
        if any(next(journal.frames((KIND_ROWS, KIND_STEPS)), None) for journal in self._journals):
            self._notices.append("nothing says which run this is; its records are read all the same")
            return RunHeader(run_id=None, backend="unknown")
        raise LogError(
            f"{self._path} is no readable log: {'; '.join([*self._notices, 'and no journal holds a block'])}"
        )

    def _say_missing_ranks(self, files: list[Path]) -> None:
        missing = self._header.world_size - len(files)
        if files and missing > 0:
            self._notices.append(
                f"{missing} of {self._header.world_size} ranks have no journal in {self._path}: their rows are missing"
            )


def _inflate(journal: Journal, header: FrameHeader, payload: bytes) -> bytes | None:
    raw = inflate(header, payload)
    if raw is None:
        journal.refuse(header, "its compressed bytes are wrong or longer than it says")
    return raw


def _decode(journal: Journal, header: FrameHeader, decode: Callable[[bytes], _Columns], raw: bytes) -> _Columns | None:
    try:
        return decode(raw)
    except BadBlockError as error:
        journal.refuse(header, str(error))
        return None


def _row_columns(parts: list[tuple[FrameHeader, blocks.MicroColumns]]) -> RowColumns:
    num_rows = np.concatenate([columns.num_rows for _, columns in parts])
    attempt = np.repeat([header.attempt for header, _ in parts], [columns.step.size for _, columns in parts])

    def per_row(values: list[np.ndarray]) -> np.ndarray:
        return np.repeat(np.concatenate(values), num_rows)

    row = np.concatenate([columns.row for _, columns in parts])
    return RowColumns(
        attempt=np.repeat(attempt.astype(np.int32), num_rows),
        step=per_row([columns.step for _, columns in parts]),
        micro=per_row([columns.micro.astype(np.int32) for _, columns in parts]),
        rank=np.full(row.size, parts[0][0].rank, np.int32),
        row=row,
        loss_sum=np.concatenate([columns.loss_sum for _, columns in parts]),
        num_tokens=np.concatenate([columns.num_tokens.astype(np.int32) for _, columns in parts]),
        reason=per_row([columns.reason.astype(np.uint8) for _, columns in parts]),
        keep=per_row([columns.keep for _, columns in parts]),
    )


def _step_columns(header: FrameHeader, columns: blocks.StepBlock) -> StepColumns:
    return StepColumns(
        attempt=np.full(columns.step.size, header.attempt, np.int32),
        rank=np.full(columns.step.size, header.rank, np.int32),
        **{**columns._asdict(), "reason": columns.reason.astype(np.uint8)},
    )
