r"""Reads a `rewind.jsonl` as a source.

    bytes -> blocks of whole lines -> `usual_lines` types those that look as they are written --+-> RowColumns
                                      `lines` types the rest, one by one, and counts -----------+

Invariant: every line is either in a block or counted in a notice, and blocks stand in the
order of the file. Memory: one block of lines and what it decodes to, whatever the size of the file.

A line `header` further down, or a micro-batch that the run had already done, begins the next attempt: the run was
resumed into the same file. A header that names another dataset begins a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.log.foreign.left_out import MAX_NAMED, LeftOut, on_open_line
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, Lines, line_blocks
from trimtab.log.foreign.rewind_jsonl.attempts import AttemptCounter
from trimtab.log.foreign.rewind_jsonl.lines import (
    Batch,
    Header,
    first_record,
    read_header,
    read_line,
    unread_fields,
)
from trimtab.log.foreign.rewind_jsonl.parked import ParkedRows
from trimtab.log.foreign.rewind_jsonl.repeats import RepeatFinder
from trimtab.log.foreign.rewind_jsonl.usual_lines import UsualLines
from trimtab.log.source import RecordedEvent
from trimtab.values import Event, RunHeader


class RewindSource:
    """A `rewind.jsonl`, opened for reading. Each pass over the file starts afresh; later ones reuse what was decoded.

    Args:
        path: The file; where none of its lines is a record, all of them are counted in notices.

    Attributes:
        format: "rewind_jsonl".
        path: The file.
        header: What the header line says; without one, a header that knows nothing.
        size_bytes: Size of the file.
        has_rows: True, always.

    Raises:
        LogError: The file cannot be read, or its header is of another version.
    """

    format = "rewind_jsonl"
    has_rows = True

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._parked: ParkedRows | None = None
        self._notices: list[str] = []
        self._restarts: tuple[int, ...] | None = None
        try:
            self.size_bytes = path.stat().st_size
            first = first_record(path)
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error
        self._has_header = isinstance(first, Header)
        self._unread = unread_fields(first.fields) if isinstance(first, Header) else []
        self.header = (
            read_header(first.fields, path=self.path)
            if isinstance(first, Header)
            else RunHeader(run_id=None, backend="unknown")
        )

    def notices(self) -> list[str]:
        """What a reader should know of lines left out and attempts found; complete once all blocks were read."""
        missing = "the log has no header line: nothing is known of the run but its rows"
        unread = f"the header's {', '.join(self._unread)} cannot be what is meant there: taken as not known"
        return [*([] if self._has_header else [missing]), *([unread] if self._unread else []), *self._notices]

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks of a few megabytes of lines, in the order of the file; see `Source.row_blocks`."""
        if self._parked:
            yield from self._parked.blocks(first_step=first_step, last_step=last_step)
            if progress:
                progress(self.size_bytes)
            return

        reading, parked = _Reading(), _Parking()
        try:
            with Path(self.path).open("rb") as file:
                for lines in line_blocks(file):
                    block = reading.decode(lines)
                    if progress:
                        progress(lines.end_byte)
                    if block.num_records:
                        parked.park(block)
                        if _overlaps(block, first_step=first_step, last_step=last_step):
                            yield block
        except OSError as error:
            raise LogError(f"{self.path}: reading failed ({error.strerror}). Copy the file and try again.") from error
        self._notices, self._restarts = reading.notices(), reading.restarts()
        self._parked = parked.rows

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """No step records: the format has none."""
        return StepColumns.empty()

    def step_blocks(self) -> Iterator[StepColumns]:
        """No step records: the format has none."""
        yield from ()

    def event_list(self, *, without: Collection[str] = ()) -> list[Event]:
        """No events: the format has none."""
        return []

    def event_stream(self, kinds: Collection[str]) -> Iterator[RecordedEvent]:
        """No events: the format has none."""
        yield from ()

    def side_columns(self) -> SideColumns:
        """Nothing: the format has rows alone."""
        return SideColumns.empty()

    def id_columns(self) -> IdColumns:
        """None: a log of this format knows rows by number alone."""
        return IdColumns.empty()

    def restarts(self) -> tuple[int, ...]:
        """Attempts after a header that names another dataset; others continue the run before them."""
        if self._restarts is None:
            for _ in self.row_blocks():
                pass
        assert self._restarts is not None
        return self._restarts


class _Records(NamedTuple):
    """Rows of some lines, parallel arrays (R)."""

    place: NDArray[np.int64]
    """Which line of the block."""
    step: NDArray[np.int64]
    micro: NDArray[np.int32]
    row: NDArray[np.int64]
    loss: NDArray[np.float64]
    """The row's mean; NaN for null."""
    tokens: NDArray[np.int64]


class _Reading:
    """One pass over the file: decodes blocks of lines, tells attempts apart, counts what it leaves out."""

    def __init__(self) -> None:
        self._lines = UsualLines()
        self._left_out = LeftOut()
        self._open_line: int | None = None
        self._attempts = AttemptCounter()
        self._fingerprint: str | None = None
        self._run_lines: list[int] = []
        self._repeats = RepeatFinder()

    def decode(self, lines: Lines) -> RowColumns:
        """The row records of some lines; what cannot be read is noted."""
        if lines.too_long:
            self._left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
            return RowColumns.empty()
        if not lines.has_end:
            self._open_line = lines.first_line if lines.data.strip() else None
            return RowColumns.empty()

        # What is not UTF-8 matches no pattern once replaced, and is then told apart by its bytes.
        texts = lines.data.decode("utf-8", "replace").split("\n")
        usual = _Records(**self._lines.read(lines.data, texts))
        rest = np.ones(len(texts), np.bool_)
        rest[usual.place] = False
        places = [place for place in np.flatnonzero(rest).tolist() if texts[place].strip()]
        odd, headers, restarts = self._odd(lines, places)
        records = usual
        if odd:
            records = _Records._make(np.concatenate(column) for column in zip(usual, *odd, strict=True))
            order = np.argsort(records.place, kind="stable")
            records = _Records._make(column[order] for column in records)
        attempt = self._attempts.assign(
            place=records.place, step=records.step, micro=records.micro, headers=headers, restarts=restarts
        )
        rows = _row_columns(records, attempt)
        repeats = self._repeated(records, attempt, texts, first_line=lines.first_line)
        return rows.take(~np.isin(records.place, repeats)) if repeats else rows

    def notices(self) -> list[str]:
        """What was left out, and how often the run began again."""
        said = [*self._left_out.notices(), *on_open_line(self._open_line)]
        num_joined = self._repeats.num_joined
        if num_joined:
            said.append(
                f"{num_joined} lines are of a micro-batch that a line before them is of too, as those of another rank "
                "and of a long micro-batch are: read as one micro-batch"
            )
        num_attempts, num_runs = self._attempts.num_attempts, 1 + len(self._attempts.restarts)
        if num_runs > 1:
            named = ", ".join(map(str, self._run_lines[:MAX_NAMED]))
            more = ", ..." if len(self._run_lines) > MAX_NAMED else ""
            said.append(
                f"{num_runs} runs in one file, each judged by itself: a header names another dataset "
                f"(line {named}{more})"
            )
        if num_attempts > num_runs:
            said.append(f"the file holds {num_attempts} attempts: the run was resumed or started again in it")
        return said

    def restarts(self) -> tuple[int, ...]:
        """Attempts that are runs of their own."""
        return tuple(self._attempts.restarts)

    def _odd(self, lines: Lines, places: list[int]) -> tuple[list[_Records], list[int], list[int]]:
        """Records of lines that are not as usual; which of these are headers, and which of those begin a run."""
        if not places:
            return [], [], []
        raw = lines.data.split(b"\n")
        records, headers, restarts = [], [], []
        for place in places:
            record = read_line(raw[place])
            number = lines.first_line + place
            if isinstance(record, Batch) and record.rows:
                records.append(_one_line(record, place))
            elif isinstance(record, Batch):
                self._left_out.add(number, "of a micro-batch without rows")
            elif isinstance(record, Header):
                headers.append(place)
                if self._names_another_dataset(record.fields):
                    restarts.append(place)
                    self._run_lines.append(number)
            else:
                self._left_out.add(number, record.reason)
        return records, headers, restarts

    def _names_another_dataset(self, fields: dict[str, Any]) -> bool:
        """Whether a header says that what follows was trained on other data than what stands before it."""
        fingerprint = fields.get("dataset_fingerprint")
        if not isinstance(fingerprint, str):
            return False
        before, self._fingerprint = self._fingerprint, fingerprint
        return before is not None and before != fingerprint

    def _repeated(
        self, records: _Records, attempt: NDArray[np.int32], texts: list[str], *, first_line: int
    ) -> list[int]:
        """Places of lines that stand in their attempt already."""
        starts = np.flatnonzero(np.diff(records.place, prepend=-1))
        repeats = self._repeats.find(
            place=records.place[starts],
            attempt=attempt[starts],
            step=records.step[starts],
            micro=records.micro[starts],
            texts=texts,
            open_attempts=self._attempts.open_attempts,
        )
        self._left_out.add_all([first_line + place for place in repeats], "identical to another of the same step")
        return repeats


class _Parking:
    """Parks blocks until there is no room for one; then the next pass decodes the file again."""

    def __init__(self) -> None:
        self.rows: ParkedRows | None = ParkedRows()

    def park(self, block: RowColumns) -> None:
        if self.rows is None:
            return
        try:
            self.rows.park(block)
        except OSError:
            self.rows.close()
            self.rows = None


def _overlaps(block: RowColumns, *, first_step: int | None, last_step: int | None) -> bool:
    return (first_step is None or int(block.step.max()) >= first_step) and (
        last_step is None or int(block.step.min()) <= last_step
    )


def _one_line(batch: Batch, place: int) -> _Records:
    size = len(batch.rows)
    return _Records(
        place=np.full(size, place, np.int64),
        step=np.full(size, batch.step, np.int64),
        micro=np.full(size, batch.micro, np.int32),
        row=np.array(batch.rows, np.int64),
        loss=np.array(batch.losses, np.float64),
        tokens=np.array(batch.tokens, np.int64),
    )


def _row_columns(records: _Records, attempt: NDArray[np.int32]) -> RowColumns:
    size = records.row.size
    with np.errstate(over="ignore", invalid="ignore"):
        loss_sum = np.where(records.tokens > 0, records.loss * records.tokens, 0.0)
    return RowColumns(
        attempt=attempt,
        step=records.step,
        micro=records.micro,
        rank=np.zeros(size, np.int32),
        row=records.row,
        loss_sum=loss_sum,
        num_tokens=records.tokens,
        reason=np.zeros(size, np.uint8),
        keep=np.ones(size, np.bool_),
    )
