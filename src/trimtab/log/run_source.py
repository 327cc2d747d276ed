"""Reads the run folders that Trimtab writes: `run.json` and a journal a rank.

Enters: a run folder, or one journal of it. Leaves: a `Source`. Invariant: damage in a journal raises nothing, and what
it cost is said in `notices()`; memory stays at a few blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from trimtab.errors import LogError
from trimtab.log import folder
from trimtab.log.blocks import MicroColumns, decode_events, decode_rows, decode_steps
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.frames import KIND_EVENTS, KIND_ROWS, KIND_STEPS, FrameHeader, inflate
from trimtab.log.planes import BadBlockError
from trimtab.log.scan import Journal
from trimtab.values import Event, RunHeader

# Small blocks of a slow run are handed on together: numpy's fixed cost a call is then nothing, 5 MB are held.
_ROWS_AT_ONCE: Final = 1 << 17

_Decoded = TypeVar("_Decoded")


class RunSource:
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
        """Row records in blocks of about 131,072, each of one rank; see `Source.row_blocks`."""
        done = 0
        for journal in self._journals:
            waiting: list[tuple[FrameHeader, MicroColumns]] = []
            num_waiting = 0
            frames = journal.frames((KIND_ROWS,), first_step=first_step, last_step=last_step)
            for header, columns in _decoded(journal, frames, lambda _, raw: decode_rows(raw)):
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

        def decode(header: FrameHeader, raw: bytes) -> StepColumns:
            return decode_steps(raw, attempt=header.attempt, rank=header.rank)

        return StepColumns.concat(
            columns
            for journal in self._journals
            for _, columns in _decoded(journal, journal.frames((KIND_STEPS,)), decode)
        )

    def event_list(self) -> list[Event]:
        """All events of all ranks, by time."""
        found: list[Event] = []
        for journal in self._journals:
            for _, events in _decoded(journal, journal.frames((KIND_EVENTS,)), lambda _, raw: decode_events(raw)):
                found += events
        return sorted(found, key=lambda event: event.time)

    def id_columns(self) -> IdColumns:
        """None: a log of this format knows rows by number alone."""
        return IdColumns.empty()

    def restarts(self) -> tuple[int, ...]:
        """None: an attempt continues the run before it."""
        return ()

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


def _decoded(
    journal: Journal, frames: Iterator[tuple[FrameHeader, bytes]], decode: Callable[[FrameHeader, bytes], _Decoded]
) -> Iterator[tuple[FrameHeader, _Decoded]]:
    """What the frames hold; one that does not hold together is noted in its journal and left out."""
    for header, payload in frames:
        raw = inflate(header, payload)
        if raw is None:
            journal.refuse(header, "its compressed bytes are wrong or longer than it says")
            continue
        try:
            decoded = decode(header, raw)
        except BadBlockError as error:
            journal.refuse(header, str(error))
            continue
        yield header, decoded


def _row_columns(parts: list[tuple[FrameHeader, MicroColumns]]) -> RowColumns:
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
