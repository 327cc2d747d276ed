"""Reads a metric file in CSV: header lines and blocks of lines become records.

    bytes -> blocks of whole lines -> csv_header, csv_block -> StepRecords, evaluations, notices

Enters: a path. Leaves: `Metrics`. Invariant: every line is in a record, an event or a notice. Memory is one block of
lines and 80 bytes a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.csv_block import Block, Column, read_columns, read_lines
from trimtab.log.foreign.csv_header import Header, read_header
from trimtab.log.foreign.epochs import counted_through, epoch_as_step
from trimtab.log.foreign.evaluations import Evaluations
from trimtab.log.foreign.left_out import MAX_NAMED, LeftOut
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, Lines, line_blocks
from trimtab.log.foreign.metric_names import Role
from trimtab.log.foreign.rewind_lines import BYTE_ORDER_MARK
from trimtab.log.foreign.step_records import UNCOUNTED, StepRecords
from trimtab.log.foreign.step_source import Metrics, Progress

MAX_HEADERS: Final = 1_000
"""Headers with other columns heeded in one file; each costs a block of its own."""

MAX_ON_NAMES: Final = 5
"""Notices about the columns that were chosen under all headers."""

MAX_TOKENS: Final = 2.0**53
"""What is more is no count of tokens."""


def read_csv(path: Path, *, progress: Progress | None = None) -> Metrics:
    """Reads the whole file.

    Args:
        path: A file whose first line is a header.
        progress: Called now and then with the number of bytes done.

    Raises:
        OSError: It cannot be read.
    """
    reading = _Reading()
    with path.open("rb") as file:
        for lines in line_blocks(file):
            reading.take(lines)
            if progress:
                progress(lines.end_byte)
    return reading.metrics()


class _Reading:
    """One pass over a file."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._later_headers: list[int] = []
        self._blocks: list[StepRecords] = []
        self._epochs: list[NDArray[np.float64]] = []
        self._is_step: list[NDArray[np.bool_]] = []
        self._num_entries = 0
        self._has_steps = False
        self._evaluations = Evaluations()
        self._left_out = LeftOut()
        self._on_names: list[str] = []
        self._torn_line: int | None = None
        self._shortest_end: int | None = None

    def take(self, lines: Lines) -> None:
        """Reads the next block of lines."""
        if lines.too_long:
            self._left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
            return
        data = lines.data.removeprefix(BYTE_ORDER_MARK) if lines.first_line == 1 else lines.data
        data = data.replace(b"\r\n", b"\n")
        whole = data.rfind(b"\n") + 1
        if whole:
            self._take_lines(data[:whole], first=lines.first_line)
        if whole < len(data):
            self._take_last(_text(data[whole:]), number=lines.first_line + data.count(b"\n"))

    def metrics(self) -> Metrics:
        """All that was read."""
        records = StepRecords.concat(self._blocks)
        epoch = np.concatenate([np.empty(0), *self._epochs])
        is_step = np.concatenate([np.empty(0, np.bool_), *self._is_step])
        step, notices = self._steps(records.step, epoch)
        torn = [] if self._torn_line is None else [f"the last line ({self._torn_line}) is torn and was left out"]
        return Metrics(
            records=records._replace(step=step).take(is_step),
            events=self._evaluations.events(step),
            notices=[
                *_on_later_headers(self._later_headers),
                *self._on_names,
                *notices,
                *self._left_out.notices(),
                *torn,
                *self._evaluations.notices(),
            ],
        )

    def _steps(self, step: NDArray[np.int64], epoch: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
        """The steps to go by, and what to say of them; (N,) each."""
        if self._has_steps:
            return counted_through(step, epoch)
        by_epoch = epoch_as_step(epoch)
        counted = "line numbers are" if by_epoch is None else "the epoch is"
        return step if by_epoch is None else by_epoch, [
            f"no column is named as a step usually is: {counted} read as it"
        ]

    def _take_lines(self, data: bytes, *, first: int) -> None:
        """Reads whole lines."""
        while self._header is None and data:
            line, _, data = data.partition(b"\n")
            header = read_header(_text(line))
            if header is not None:
                self._take_header(header)
            elif line.strip():
                self._left_out.add(first, "before the header")
            first += 1
        if self._header is None or not data:
            return
        block = read_columns(data, header=self._header, first_line=first)
        if block is not None:
            self._keep(block, header=self._header)
            return
        lines = enumerate(_text(data).removesuffix("\n").split("\n"), start=first)
        while True:
            block, found = read_lines(lines, header=self._header, left_out=self._left_out)
            self._keep(block, header=self._header)
            if found is None:
                return
            number, header = found
            if len(self._later_headers) < MAX_HEADERS:
                self._later_headers.append(number)
                self._take_header(header)
            else:
                self._left_out.add(number, "with yet another header")

    def _take_last(self, line: str, *, number: int) -> None:
        """Reads a last line without an end, unless it is torn.

        Where it has all its cells, the last of them may have been cut short. A cut leaves a cell that is empty, or is
        shorter than every other in its column, or takes away digits that these do not have either.
        """
        if self._header is None or not line.strip():
            return
        left_out = LeftOut()
        block, found = read_lines(iter([(number, line)]), header=self._header, left_out=left_out)
        end = block.shortest_end
        is_cut = end is None or (self._shortest_end is not None and end < self._shortest_end)
        if found is not None or left_out.notices() or is_cut:
            self._torn_line = number
        else:
            self._keep(block, header=self._header)

    def _take_header(self, header: Header) -> None:
        """The first header, or a later one: what follows is read under it."""
        self._header, self._shortest_end = header, None
        self._has_steps |= "step" in header.columns
        for notice in header.roles.notices():
            if notice not in self._on_names and len(self._on_names) < MAX_ON_NAMES:
                self._on_names.append(notice)

    def _keep(self, block: Block, *, header: Header) -> None:
        """Takes the steps of a block, and its evaluations."""
        size = block.step.size
        nothing = Column(np.full(size, np.nan), np.zeros(size, np.bool_))

        def column(role: Role) -> Column:
            return block.values.get(role, nothing)

        evaluated = np.zeros(size, np.bool_)
        for evaluation in block.evaluations.values():
            evaluated |= evaluation.given
        for at in np.flatnonzero(evaluated).tolist():
            losses = {
                header.names[place]: float(found.value[at])
                for place, found in block.evaluations.items()
                if found.given[at]
            }
            self._evaluations.add(self._num_entries + at, losses)
        if block.shortest_end is not None:
            self._shortest_end = min(block.shortest_end, self._shortest_end or block.shortest_end)

        loss, grad_norm, tokens = column("loss"), column("grad_norm"), column("num_tokens").value
        records = StepRecords.of(
            block.step,
            place=block.place,
            loss=loss.value,
            has_loss=loss.given,
            grad_norm=grad_norm.value,
            has_grad_norm=grad_norm.given,
            lr=column("lr").value,
            loss_scale=column("loss_scale").value,
            num_tokens=np.where((tokens >= 0) & (tokens < MAX_TOKENS), tokens, UNCOUNTED),
        )
        self._blocks.append(records)
        self._epochs.append(column("epoch").value)
        self._is_step.append(loss.given | grad_norm.given | ~evaluated)
        self._num_entries += size


def _on_later_headers(numbers: list[int]) -> list[str]:
    if not numbers:
        return []
    if len(numbers) == 1:
        return [f"line {numbers[0]} is a header with other columns: what follows was read under it"]
    named = ", ".join(map(str, numbers[:MAX_NAMED])) + (", ..." if len(numbers) > MAX_NAMED else "")
    return [f"{len(numbers)} lines are headers with other columns ({named}): what follows was read under them"]


def _text(data: bytes) -> str:
    """What is not UTF-8 becomes a character that no number holds."""
    return data.decode("utf-8", "replace")
