"""Reads a text log as a source.

    bytes -> blocks of whole lines -> those that a style marks -> its pattern -> columns -> StepSource

Enters: a file and its style. Leaves: a source at step level. Invariant: a line is read by the pattern of lines like it,
the first of which is looked at cell by cell; what lies between the lines of steps is nobody's. Memory is one block, and
the step records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.left_out import on_open_line
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, Lines, line_blocks
from trimtab.log.foreign.steps.evaluations import Evaluations
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics, Progress, StepSource
from trimtab.log.foreign.text_logs.patterns import Style
from trimtab.log.foreign.text_logs.styles import printed_lines
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.values import STEP_REASONS, Event

MAX_LAYOUTS: Final = 32
"""Layouts of lines in one log: a version prints two or three, by what it measured."""

_SCALER_OVERFLOW: Final = STEP_REASONS.index("scaler_overflow")


def open_text(path: Path, style: Style) -> StepSource:
    """A text log as a source.

    Args:
        path: The file.
        style: How its lines look.

    Returns:
        The source; nothing is read yet.

    Raises:
        LogError: The file is not there, or not ours to look at.
    """
    return StepSource(
        path, format_name="text_logs", read=lambda progress: _read(path, style, progress), backend=style.backend
    )


def _read(path: Path, style: Style, progress: Progress | None) -> Metrics:
    reading, blocks = _Reading(style), []
    with path.open("rb") as file:
        for lines in line_blocks(file):
            blocks.append(reading.take(lines))
            if progress:
                progress(lines.end_byte)
    return Metrics(StepRecords.concat(blocks), reading.events.events(), reading.notices())


class _Layout:
    """Lines that look alike, of one block.

    Args:
        pattern: How they are read.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.search = pattern.search
        self.columns = {name: place - 1 for name, place in pattern.groupindex.items()}
        self.places: list[int] = []
        self.found: list[tuple[bytes | None, ...]] = []

    def take_all(self) -> list[tuple[NDArray[np.int64], dict[str, tuple[Any, ...]]]]:
        """Places and fields of what was found since the last call: one part, or none."""
        if not self.found:
            return []
        fields = list(zip(*self.found, strict=True))
        part = np.array(self.places, np.int64), {name: fields[column] for name, column in self.columns.items()}
        self.places.clear()
        self.found.clear()
        return [part]


class _Reading:
    """One pass over a log.

    Attributes:
        events: Evaluations, and iterations that were skipped.
    """

    def __init__(self, style: Style) -> None:
        self.events = Evaluations("events")
        self._style = style
        self._layouts: list[_Layout] = []
        self._num_steps = 0
        self._last_step = 0
        self._num_left_out = 0
        self._num_nan = 0
        self._num_lines_with_nan = 0
        self._num_too_long = 0
        self._on_choice: list[str] = []
        self._open_line: int | None = None

    def take(self, lines: Lines) -> StepRecords:
        """The steps of some lines; what else they say is noted."""
        if lines.too_long:
            self._num_too_long += 1
            return StepRecords.of([], place=[])
        texts = printed_lines(lines.data)
        last = texts.pop()
        if not lines.has_end:
            is_of_use = self._style.mark in last or self._style.evaluation_mark in last
            self._open_line = lines.first_line if is_of_use else None
        if b"\r" in lines.data and b"\r" in lines.data.replace(b"\r\n", b"\n"):
            # A progress bar writes over its line, and what is printed meanwhile stands in it.
            for number, text in enumerate(texts, start=lines.first_line):
                self._take_lines(text.split(b"\r"), repeat(number))
        else:
            self._take_lines(texts, count(lines.first_line))
        return self._records()

    def notices(self) -> list[str]:
        """What the log does not say, what was left out, and iterations that its losses do not show."""
        said = [*self._on_choice]
        if self._num_steps and not self._style.has_steps:
            said.append(
                f"the lines do not say their steps: they were counted, 1 to {self._num_steps}; logged every N steps, "
                "line K is about step K x N"
            )
        if self._num_lines_with_nan:
            said.append(
                f"{self._num_nan} iterations were not finite and were skipped, by the counters of "
                f"{self._num_lines_with_nan} lines that each speak for several iterations; their losses leave these out"
            )
        if self._num_left_out:
            said.append(f"{self._num_left_out} lines were left out: the log has more than {MAX_LAYOUTS} kinds of them")
        if self._num_too_long:
            lines = "1 line" if self._num_too_long == 1 else f"{self._num_too_long} lines"
            said.append(f"{lines} longer than {MAX_LINE_BYTES >> 20} MB left out")
        return [*said, *self.events.notices(), *on_open_line(self._open_line)]

    def _take_lines(self, texts: Iterable[bytes], numbers: Iterator[int]) -> None:
        mark, evaluation_mark = self._style.mark, self._style.evaluation_mark
        layout = self._layouts[-1] if self._layouts else _NO_LAYOUT
        for text, number in zip(texts, numbers, strict=False):
            if mark in text:
                match = layout.search(text)
                if match is not None:
                    layout.places.append(number)
                    layout.found.append(match.groups())
                    continue
                other = self._layout_of(text)
                if other is not None:
                    layout, match = other, other.search(text)
                    assert match is not None
                    layout.places.append(number)
                    layout.found.append(match.groups())
                    continue
            if evaluation_mark in text:
                self._take_evaluation(text, layout)

    def _layout_of(self, text: bytes) -> _Layout | None:
        """The layout of a line that is not like the one before; None if it is no step."""
        known = next((layout for layout in self._layouts if layout.search(text)), None)
        if known is not None:
            return known
        pattern = self._style.layout(text)
        if pattern is None or not pattern.search(text):
            return None
        if len(self._layouts) >= MAX_LAYOUTS:
            self._num_left_out += 1
            return None
        self._layouts.append(_Layout(pattern))
        self._on_choice += [said for said in self._style.on_choice(text) if said not in self._on_choice]
        return self._layouts[-1]

    def _take_evaluation(self, text: bytes, layout: _Layout) -> None:
        evaluation = self._style.evaluation(text)
        if evaluation is None:
            return
        step = self._step_before(layout) if evaluation.step is None else evaluation.step
        self.events.add(step, evaluation.losses)

    def _step_before(self, layout: _Layout) -> int:
        """The step of the last line of one so far; 0 before the first."""
        if not self._style.has_steps:
            return self._num_steps + sum(len(layout.found) for layout in self._layouts)
        if not layout.found:
            return self._last_step
        return int(layout.found[-1][layout.columns["step"]] or 0)

    def _records(self) -> StepRecords:
        """What was found since the last call, in the order of the file."""
        blocks = []
        for layout in self._layouts:
            for places, fields in layout.take_all():
                blocks.append(self._part(places, fields))
        records = StepRecords.concat(blocks)
        if len(blocks) > 1:
            records = records.take(np.argsort(records.place, kind="stable"))
        if not self._style.has_steps:
            records = records._replace(step=np.arange(records.num_records) + self._num_steps + 1)
        self._num_steps += records.num_records
        if records.num_records:
            self._last_step = int(records.step[-1])
        return records

    def _part(self, places: NDArray[np.int64], fields: dict[str, tuple[Any, ...]]) -> StepRecords:
        """The records of lines that look alike."""
        loss, has_loss = _floats(fields.get("loss"), places.size)
        grad_norm, has_grad_norm = _floats(fields.get("grad_norm"), places.size)
        num_skipped, num_nan = (
            np.nan_to_num(_floats(fields.get(name), places.size)[0]) for name in ("num_skipped", "num_nan")
        )
        step = np.array(list(map(int, fields["step"]))) if self._style.has_steps else np.zeros(places.size, np.int64)
        self._note_skipped(step, num_skipped, num_nan, has_loss)
        # Iterations that were skipped are left out of the mean, and where all of them were none is printed.
        all_skipped = ~has_loss & (num_skipped + num_nan > 0)
        return StepRecords.of(
            step,
            place=places,
            loss=loss,
            has_loss=has_loss | (all_skipped & (num_nan > 0)),
            grad_norm=grad_norm,
            has_grad_norm=has_grad_norm,
            lr=_floats(fields.get("lr"), places.size)[0],
            loss_scale=_floats(fields.get("loss_scale"), places.size)[0],
            reason=np.where(all_skipped, _SCALER_OVERFLOW, UNKNOWN_REASON),
        )

    def _note_skipped(
        self,
        step: NDArray[np.int64],
        num_skipped: NDArray[np.float64],
        num_nan: NDArray[np.float64],
        has_loss: NDArray[np.bool_],
    ) -> None:
        """Iterations that a line counts and whose losses it does not show."""
        hidden = has_loss & (num_nan > 0)
        self._num_lines_with_nan += int(hidden.sum())
        self._num_nan += int(num_nan[hidden].sum())
        for at in np.flatnonzero((num_skipped > 0) | (num_nan > 0)).tolist():
            counts = {"num_skipped": int(num_skipped[at]), "num_nonfinite": int(num_nan[at])}
            self.events.add_event(Event("skipped_iterations", int(step[at]), 0.0, counts))


_NO_LAYOUT: Final = _Layout(re.compile(rb"(?!)"))
"""Before the first line of a step."""


def _floats(values: tuple[bytes | None, ...] | None, size: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers of one field, (N,), NaN where there is none, and whether there is one."""
    if values is None or not any(values):
        return np.full(size, np.nan), np.zeros(size, np.bool_)
    # Scales, rates and counters hardly change: a look into a dictionary is a quarter of reading a number.
    known = {value: math.nan if value is None else float(value) for value in set(values)}
    numbers = np.fromiter(map(known.__getitem__, values), np.float64, size)
    return numbers, np.ones(size, np.bool_) if None not in known else np.array([value is not None for value in values])
