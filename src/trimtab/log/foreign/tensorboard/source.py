"""Reads TensorBoard's event files as a source.

    files -> EventFrames (checksums) -> read_event (numbers) -> ScalarRecords (steps) -> StepSource

Enters: the event files of one run, in order. Leaves: a source at step level. Invariant: every record is read, or said
to be left out.

Nearly all records of a file are alike but for time, step and one float. What was read once is known again by its other
bytes, which is six times as fast as reading it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trimtab.errors import LogError
from trimtab.log.foreign.steps.source import Metrics, Progress, StepSource
from trimtab.log.foreign.tensorboard.frames import EventFrames, Records
from trimtab.log.foreign.tensorboard.records import ScalarRecords
from trimtab.log.foreign.tensorboard.scalars import BadEventError, Scalars, read_event

MAX_SHAPES: Final = 10_000
"""Kinds of records that are known again; one tag is one, and up to ten where its step grows."""

MAX_TAILS: Final = 4
"""Places, counted from the end of a record, at which the float of a known one may stand."""

_FLOAT: Final = struct.Struct("<f")
_TIME: Final = struct.Struct("<d")


def open_event_files(path: Path, files: Sequence[Path], *, notices: Sequence[str] = ()) -> StepSource:
    """The event files of one run as a source.

    Args:
        path: What to call it: the file, or the folder of several.
        files: The files, in order; at least one.
        notices: What is to be said first.

    Returns:
        The source; nothing is read yet.

    Raises:
        LogError: A file is not there, or not ours to look at.
    """

    def read(progress: Progress | None) -> Metrics:
        metrics = _read(files, progress)
        return metrics._replace(notices=[*notices, *metrics.notices])

    try:
        size = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error
    return StepSource(path, format_name="tensorboard", read=read, place="entry", size_bytes=size)


def _read(files: Sequence[Path], progress: Progress | None) -> Metrics:
    into, notices, num_bytes = ScalarRecords(), [], 0
    for number, file in enumerate(files):
        reading = _FileReading(into, number=number, name=file.name)
        with file.open("rb") as stream:
            frames = EventFrames(stream, name=file.name)
            for records in frames.records():
                reading.take(records)
                if progress:
                    progress(num_bytes + records.offset + len(records.data))
            num_bytes += stream.tell()
        notices += [*frames.notices(), *reading.notices()]
    if progress:
        progress(num_bytes)
    if not into.num_scalars:
        notices.append("no scalar is in it")
    metrics = into.metrics()
    return metrics._replace(notices=[*notices, *metrics.notices])


class _FileReading:
    """Hands the scalars of one file on."""

    def __init__(self, into: ScalarRecords, *, number: int, name: str) -> None:
        self._into = into
        self._number = number
        self._name = name
        # By the record's bytes without time, step and float: its tag.
        self._shapes: dict[tuple[int, bytes], bytes] = {}
        self._tails: list[int] = []
        self._num_bad = 0
        self._first_bad = 0

    def take(self, records: Records) -> None:
        """Takes the records of one read."""
        data, add, number = records.data, self._into.add, self._number
        for start, end in records.spans:
            behind = _behind_step(data, start, end)
            for tail in self._tails if behind else ():
                float_at = end - tail
                shape = (tail, data[behind:float_at] + data[float_at + 4 : end])
                tag = self._shapes.get(shape)
                if tag is not None and float_at >= behind:
                    time, step = _TIME.unpack_from(data, start + 1)[0], _step(data, start + 10, behind)
                    add(tag, file=number, step=step, time=time, value=_FLOAT.unpack_from(data, float_at)[0])
                    break
            else:
                self._read(records, start, end)

    def notices(self) -> list[str]:
        """What was no event."""
        if not self._num_bad:
            return []
        what = "1 record is no event" if self._num_bad == 1 else f"{self._num_bad} records are no events"
        return [f"{self._name}: {what} and left out (the first at byte {self._first_bad})"]

    def _read(self, records: Records, start: int, end: int) -> None:
        try:
            event = read_event(records.data, start, end)
        except BadEventError:
            self._first_bad = self._first_bad if self._num_bad else records.offset + start
            self._num_bad += 1
            return
        for scalar in event.scalars:
            self._into.add(scalar.tag, file=self._number, step=event.step, time=event.time, value=scalar.value)
        self._remember(records.data, start, end, event)

    def _remember(self, data: bytes, start: int, end: int, event: Scalars) -> None:
        if len(event.scalars) != 1 or event.scalars[0].place < 0 or event.behind_step < 0:
            return
        if event.behind_step != _behind_step(data, start, end) or len(self._shapes) >= MAX_SHAPES:
            return
        float_at = event.scalars[0].place
        tail = end - float_at
        if tail not in self._tails:
            if len(self._tails) >= MAX_TAILS:
                return
            self._tails.append(tail)
        self._shapes[tail, data[event.behind_step : float_at] + data[float_at + 4 : end]] = event.scalars[0].tag


def _behind_step(data: bytes, start: int, end: int) -> int:
    """The place behind the step of a record that begins with time and step; 0 where it does not."""
    if end - start < 12 or data[start] != 0x09 or data[start + 9] != 0x10:
        return 0
    place = start + 10
    while place < end and data[place] >= 0x80:
        place += 1
    return place + 1 if place < end and place - start < 19 else 0


def _step(data: bytes, place: int, behind: int) -> int:
    """A step of up to nine groups of seven bits; one of ten is negative, and never known again."""
    value = shift = 0
    for at in range(place, behind):
        value |= (data[at] & 0x7F) << shift
        shift += 7
    return value
