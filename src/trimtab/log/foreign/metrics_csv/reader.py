"""Reads a metric file in CSV: header lines and blocks of lines become records.

    bytes -> blocks of whole lines -> header, block -> StepRecords, evaluations, notices

Enters: a path. Leaves: `Metrics`. Invariant: every line is in a record, an event or a notice. Memory is one block of
lines and 80 bytes a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.left_out import MAX_NAMED, LeftOut, on_open_line
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, Lines, line_blocks
from trimtab.log.foreign.metrics_csv.block import Block, Column, read_columns, read_lines
from trimtab.log.foreign.metrics_csv.header import Header, read_header
from trimtab.log.foreign.metrics_csv.quotes import JoinedLines
from trimtab.log.foreign.steps.beside import BESIDE_ROLES, Beside
from trimtab.log.foreign.steps.epochs import counted_through, epoch_as_step
from trimtab.log.foreign.steps.evaluations import Evaluations
from trimtab.log.foreign.steps.metric_names import Role
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics, Progress

MAX_HEADERS: Final = 1_000
"""Headers with other columns heeded in one file; each costs a block of its own."""

MAX_ON_NAMES: Final = 5
"""Notices about the columns that were chosen under all headers."""


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
        self._beside: list[Beside] = []
        self._has_beside: list[NDArray[np.bool_]] = []
        self._left_out = LeftOut()
        self._unread = LeftOut(fate="read without it")
        self._on_names: list[str] = []
        self._open_line: int | None = None
        self._joined = JoinedLines(self._left_out)

    def take(self, lines: Lines) -> None:
        """Reads the next block of lines."""
        if lines.too_long:
            self._left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
            return
        if lines.has_end:
            self._take_lines(lines.data.replace(b"\r\n", b"\n"), first=lines.first_line)
        else:
            self._open_line = lines.first_line if lines.data.strip() else None

    def metrics(self) -> Metrics:
        """All that was read."""
        self._joined.end()
        records = StepRecords.concat(self._blocks)
        epoch = np.concatenate([np.empty(0), *self._epochs])
        is_step = np.concatenate([np.empty(0, np.bool_), *self._is_step])
        has_beside = np.concatenate([np.empty(0, np.bool_), *self._has_beside])
        step, notices = self._steps(records.step, epoch)
        return Metrics(
            records=records._replace(step=step).take(is_step),
            events=self._evaluations.events(step),
            event_places=self._evaluations.places(records.place),
            beside=Beside.concat(self._beside)._replace(step=step[has_beside]),
            notices=[
                *_on_later_headers(self._later_headers),
                *self._on_names,
                *notices,
                *self._left_out.notices(),
                *self._unread.notices(),
                *on_open_line(self._open_line),
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
            elif line.strip() and not line.lstrip().startswith(b"#"):
                self._left_out.add(first, "before the header")
            first += 1
        if self._header is None or not data:
            return
        block = None if self._joined.is_open else read_columns(data, header=self._header, first_line=first)
        if block is not None:
            self._keep(block, header=self._header)
            return
        lines = self._joined.join(enumerate(_text(data).removesuffix("\n").split("\n"), start=first))
        while True:
            block, found = read_lines(lines, header=self._header, left_out=self._left_out, unread=self._unread)
            self._keep(block, header=self._header)
            if found is None:
                return
            number, header = found
            if len(self._later_headers) < MAX_HEADERS:
                self._later_headers.append(number)
                self._take_header(header)
            else:
                self._left_out.add(number, "with yet another header")

    def _take_header(self, header: Header) -> None:
        """The first header, or a later one: what follows is read under it."""
        self._header = self._joined.header = header
        self._has_steps |= "step" in header.columns
        for notice in header.notices():
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

        loss, grad_norm = column("loss"), column("grad_norm")
        records = StepRecords.of(
            block.step,
            place=block.place,
            loss=loss.value,
            has_loss=loss.given,
            grad_norm=grad_norm.value,
            has_grad_norm=grad_norm.given,
            lr=column("lr").value,
            loss_scale=column("loss_scale").value,
            num_tokens=column("num_tokens").value,
        )
        self._blocks.append(records)
        self._epochs.append(column("epoch").value)
        beside = Beside.of(
            block.step,
            place=block.place,
            values={role: block.values[role].value for role in BESIDE_ROLES if role in block.values},
            names=header.roles.names,
        )
        has_beside = np.isin(block.place, beside.place)
        self._beside.append(beside)
        self._has_beside.append(has_beside)
        self._is_step.append(loss.given | grad_norm.given | ~(evaluated | has_beside))
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
