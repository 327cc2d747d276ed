r"""Reads a `rewind.jsonl` as a source.

    bytes -> blocks of whole lines -> `usual_lines` types those that look as they are written --+-> RowColumns
                                      `rewind_lines` types the rest, one by one, and counts ----+

Invariant: every line is either in a block or counted in a notice, and blocks stand in the
order of the file. Memory: one block of lines and what it decodes to, whatever the size of the file.

A line `header` further down, or a micro-batch that the run had already done, begins the next attempt: the run was
resumed into the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.foreign.attempts import AttemptCounter
from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, Lines, line_blocks
from trimtab.log.foreign.parked import ParkedRows
from trimtab.log.foreign.repeats import RepeatFinder
from trimtab.log.foreign.rewind_lines import BYTE_ORDER_MARK, Batch, Header, first_record, read_header, read_line
from trimtab.log.foreign.usual_lines import UsualLines
from trimtab.values import Event, RunHeader


class RewindSource:
    """A `rewind.jsonl`, opened for reading. Each pass over the file starts afresh; later ones reuse what was decoded.

    Args:
        path: The file; where none of its lines is a record, all of them are counted in notices.

    Attributes:
        path: The file.
        header: What the header line says; without one, a header that knows nothing.
        size_bytes: Size of the file.
        has_rows: True, always.

    Raises:
        LogError: The file cannot be read, or its header is of another version.
    """

    has_rows = True

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._parked: ParkedRows | None = None
        self._notices: list[str] = []
        try:
            self.size_bytes = path.stat().st_size
            first = first_record(path)
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error
        self._has_header = isinstance(first, Header)
        self.header = (
            read_header(first.fields, path=self.path)
            if isinstance(first, Header)
            else RunHeader(run_id=None, backend="unknown")
        )

    def notices(self) -> list[str]:
        """What a reader should know of lines left out and attempts found; complete once all blocks were read."""
        missing = "the log has no header line: nothing is known of the run but its rows"
        return ([] if self._has_header else [missing]) + self._notices

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
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
        self._notices = reading.notices()
        self._parked = parked.rows

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """No step records: the format has none."""
        return StepColumns.empty()

    def event_list(self) -> list[Event]:
        """No events: the format has none."""
        return []

    def id_columns(self) -> IdColumns:
        """None: a log of this format knows rows by number alone."""
        return IdColumns.empty()

    def restarts(self) -> tuple[int, ...]:
        """None: an attempt continues the run before it."""
        return ()


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
        self._torn_line: int | None = None
        self._attempts = AttemptCounter()
        self._repeats = RepeatFinder()

    def decode(self, lines: Lines) -> RowColumns:
        """The row records of some lines; what cannot be read is noted."""
        if lines.too_long:
            self._left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
            return RowColumns.empty()

        # What is not UTF-8 matches no pattern once replaced, and is then told apart by its bytes.
        texts = lines.data.decode("utf-8", "replace").split("\n")
        usual = _Records(**self._lines.read(lines.data, texts))
        rest = np.ones(len(texts), np.bool_)
        rest[usual.place] = False
        odd, headers = self._odd(lines, [place for place in np.flatnonzero(rest).tolist() if texts[place].strip()])
        records = usual
        if odd:
            records = _Records._make(np.concatenate(column) for column in zip(usual, *odd, strict=True))
            order = np.argsort(records.place, kind="stable")
            records = _Records._make(column[order] for column in records)
        records = self._without_repeats(records, texts, headers, first_line=lines.first_line)
        attempt = self._attempts.assign(place=records.place, step=records.step, micro=records.micro, headers=headers)
        return _row_columns(records, attempt)

    def notices(self) -> list[str]:
        """What was left out, and how often the run began again."""
        said = self._left_out.notices()
        if self._torn_line is not None:
            said.append(f"the last line ({self._torn_line}) is torn: the run was stopped while writing it")
        num_attempts = self._attempts.num_attempts
        if num_attempts > 1:
            said.append(f"the file holds {num_attempts} attempts: the run was resumed or started again in it")
        return said

    def _odd(self, lines: Lines, places: list[int]) -> tuple[list[_Records], list[int]]:
        if not places:
            return [], []
        raw = lines.data.split(b"\n")
        if lines.first_line == 1:
            raw[0] = raw[0].removeprefix(BYTE_ORDER_MARK)
        records, headers = [], []
        for place in places:
            record = read_line(raw[place])
            number = lines.first_line + place
            if isinstance(record, Batch):
                records.append(_one_line(record, place))
            elif isinstance(record, Header):
                headers.append(place)
            elif place == len(raw) - 1 and record.reason == "not JSON":
                self._torn_line = number
            else:
                self._left_out.add(number, record.reason)
        return records, headers

    def _without_repeats(self, records: _Records, texts: list[str], headers: list[int], *, first_line: int) -> _Records:
        starts = np.flatnonzero(np.diff(records.place, prepend=-1))
        place, step, micro = records.place[starts], records.step[starts], records.micro[starts]
        repeats = self._repeats.find(place=place, step=step, micro=micro, texts=texts, headers=headers)
        if not repeats:
            return records
        for place_in_block in repeats:
            self._left_out.add(first_line + place_in_block, "identical to another of the same step")
        kept = ~np.isin(records.place, repeats)
        return _Records._make(column[kept] for column in records)


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
