"""A journal as a part of a run: its frames decoded into columns.

Enters: a journal. Leaves: its records, kind by kind, in the order recorded. Invariant: a frame that does not hold
together is left out and said once; memory stays at a few blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.blocks import MicroColumns, decode_events, decode_rows, decode_steps
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.frames import KIND_EVENTS, KIND_IDS, KIND_ROWS, KIND_STEPS, FrameHeader, inflate
from trimtab.log.ids import decode_ids
from trimtab.log.planes import BadBlockError
from trimtab.log.scan import Journal
from trimtab.values import Event, RunHeader

# Small blocks of a slow run are handed on together: numpy's fixed cost a call is then nothing, 5 MB are held.
_ROWS_AT_ONCE: Final = 1 << 17

_Decoded = TypeVar("_Decoded")


class JournalPart:
    """One journal, as `trimtab.log.run_source` reads any part.

    Args:
        path: The file.
        rank: The rank that its name says.
        run_id: Frames of other runs are left out; None takes the run of the first attempt header.
        hold: As for `Journal`.

    Raises:
        LogError: The file cannot be opened.
    """

    def __init__(self, path: Path, *, rank: int = 0, run_id: str | None = None, hold: bool = True) -> None:
        self._journal = Journal(path, run_id=run_id, hold=hold)
        self.name = path.name
        self.rank = rank

    @property
    def inode(self) -> tuple[int, int]:
        """Device and inode of the file: what it is, whatever its name."""
        return self._journal.inode

    @property
    def size_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._journal.size_bytes

    @property
    def has_rows(self) -> bool:
        """Whether any rows block is in it; reads up to the first."""
        return next(self._journal.frames((KIND_ROWS,)), None) is not None

    def run_header(self) -> RunHeader | None:
        """What the first attempt header says of the run; reads the file through."""
        self._journal.scan()
        return self._journal.header

    def has_records(self) -> bool:
        """Whether any row or step record is in it."""
        return next(self._journal.frames((KIND_ROWS, KIND_STEPS)), None) is not None

    def notices(self) -> list[str]:
        """What was left out; reads what has not been read yet."""
        self._journal.scan()
        return self._journal.notices()

    def attempts(self) -> dict[int, RunHeader | None]:
        """The attempts in it, and what the header of each says of the run; None where it was lost."""
        found = dict(self._journal.attempts())
        return dict.fromkeys(sorted(self._journal.attempt_numbers)) | found

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
    ) -> Iterator[tuple[int, RowColumns]]:
        """Row records in blocks of about 131,072, each with the byte up to which the file was read; of all rows, whole.

        A block is decoded as one piece, so that to leave anything out would save nothing.
        """
        waiting: list[tuple[FrameHeader, MicroColumns]] = []
        num_waiting, end = 0, 0
        frames = self._journal.frames((KIND_ROWS,), first_step=first_step, last_step=last_step)
        for header, columns in self._decoded(frames, lambda _, raw: decode_rows(raw)):
            waiting.append((header, columns))
            num_waiting += columns.row.size
            end = header.end
            if num_waiting >= _ROWS_AT_ONCE:
                yield end, _row_columns(waiting)
                waiting, num_waiting = [], 0
        if num_waiting:
            yield end, _row_columns(waiting)

    def step_blocks(self, *, brief: bool = False) -> Iterator[StepColumns]:
        """Step records, a block at a time; always whole."""

        def decode(header: FrameHeader, raw: bytes) -> StepColumns:
            return decode_steps(raw, attempt=header.attempt, rank=header.rank)

        for _, columns in self._decoded(self._journal.frames((KIND_STEPS,)), decode):
            yield columns

    def event_blocks(self) -> Iterator[tuple[int, list[Event]]]:
        """Events, a block at a time, each with its size as JSON."""
        for header, events in self._decoded(self._journal.frames((KIND_EVENTS,)), lambda _, raw: decode_events(raw)):
            yield header.raw_size, events

    def events_by_attempt(self) -> Iterator[tuple[int, list[Event]]]:
        """Events, a block at a time, each with the attempt that recorded it."""
        for header, events in self._decoded(self._journal.frames((KIND_EVENTS,)), lambda _, raw: decode_events(raw)):
            yield header.attempt, events

    def id_blocks(self) -> Iterator[IdColumns]:
        """Ids in the order handed over, a block at a time."""
        for _, columns in self._decoded(self._journal.frames((KIND_IDS,)), lambda _, raw: decode_ids(raw)):
            yield columns

    def _decoded(
        self, frames: Iterator[tuple[FrameHeader, bytes]], decode: Callable[[FrameHeader, bytes], _Decoded]
    ) -> Iterator[tuple[FrameHeader, _Decoded]]:
        for header, payload in frames:
            raw = inflate(header, payload)
            if raw is None:
                self._journal.refuse(header, "its compressed bytes are wrong or longer than it says")
                continue
            try:
                decoded = decode(header, raw)
            except BadBlockError as error:
                self._journal.refuse(header, str(error))
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
