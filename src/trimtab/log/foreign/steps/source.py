"""A log at step level as a source: losses of steps, and no rows.

    a format's reader -> Metrics -> find_attempts -> StepSource

Enters: what reads the format. Leaves: a `trimtab.log.source.Source`. Invariant: the file is read once, when somebody
first asks for something; runs of their own, resumed attempts and steps that stand twice are told apart here, the same
for every format, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.log.foreign.steps.attempts import Attempts, find_attempts
from trimtab.log.foreign.steps.beside import Beside
from trimtab.log.foreign.steps.records import UNCOUNTED, StepRecords
from trimtab.log.source import RecordedEvent
from trimtab.values import Event, RunHeader
from trimtab.watched import EVALUATION_EVENT

MAX_NAMED: Final = 5
"""Runs, or resumed attempts, named in a notice."""

Progress = Callable[[int], None]


class Metrics(NamedTuple):
    """What a format's reader gives.

    Attributes:
        records: Step records in the order of the file.
        events: Evaluations and the like, in the order of the file.
        notices: What to say of lines left out, names chosen, a torn end.
        event_places: Where each of the events stands, as the `place` of a record; none where the format does not tell.
        beside: What stands beside the steps; None where the format does not look for it.
    """

    records: StepRecords
    events: list[Event]
    notices: list[str]
    event_places: list[int] | None = None
    beside: Beside | None = None


class StepSource:
    """A log at step level, opened for reading.

    Args:
        path: The file, or the folder of several.
        format_name: Its name in `trimtab.log.foreign.FORMATS`.
        read: Reads it; called once, with a function to call now and then with the number of bytes done, or None.
        backend: What trained, as far as the format says.
        place: What a `place` of the records counts, in a word: "line" or "entry".
        notices: What is to be said first: of the choice of the file.
        size_bytes: Size of all files of the log; None: that of `path`.

    Attributes:
        format: `format_name`.
        path: What was opened.
        header: What is known of the run: next to nothing.
        size_bytes: As above.
        has_rows: False, always.

    Raises:
        LogError: The file cannot be read.
    """

    has_rows = False

    def __init__(
        self,
        path: Path,
        *,
        format_name: str,
        read: Callable[[Progress | None], Metrics],
        backend: str = "unknown",
        place: str = "line",
        notices: Sequence[str] = (),
        size_bytes: int | None = None,
    ) -> None:
        self.format = format_name
        self.path = str(path)
        self.header = RunHeader(run_id=None, backend=backend)
        self._read_metrics = read
        self._place = place
        self._notices = notices
        self._metrics: Metrics | None = None
        self._attempts: Attempts | None = None
        try:
            self.size_bytes = path.stat().st_size if size_bytes is None else size_bytes
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error

    def notices(self) -> list[str]:
        """What a reader should know: lines left out, runs and attempts found, steps that stand twice."""
        metrics, attempts = self._read()
        return [*self._notices, *_on_attempts(attempts, place=self._place), *_on_no_step(metrics), *metrics.notices]

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[RowColumns]:
        """No rows; see `Source.row_blocks`. The file is read all the same, so that `progress` hears of it."""
        self._read(progress)
        yield from ()

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """All step records, attempt by attempt, one a step."""
        _, attempts = self._read()
        records = attempts.records
        size = records.num_records
        # No tokens and no loss is a step at which nothing was measured.
        uncounted = np.where(records.has_loss, UNCOUNTED, 0)
        return StepColumns(
            attempt=attempts.attempt,
            rank=np.zeros(size, np.int32),
            step=records.step,
            loss=np.where(records.has_loss, records.loss, np.nan),
            grad_norm=records.grad_norm,
            has_grad_norm=records.has_grad_norm,
            lr=records.lr,
            has_lr=~np.isnan(records.lr),
            reason=records.reason,
            clipped=np.full(size, -1, np.int8),
            loss_scale=records.loss_scale,
            wall_s=np.full(size, np.nan),
            num_tokens=np.where(records.has_loss & (records.num_tokens > 0), records.num_tokens, uncounted),
            num_skipped_micros=np.zeros(size, np.int64),
            num_skipped_tokens=np.zeros(size, np.int64),
        )

    def step_blocks(self) -> Iterator[StepColumns]:
        """All step records, in one block: they are held anyway."""
        yield self.step_columns()

    def event_list(self, *, without: Collection[str] = ()) -> list[Event]:
        """Evaluations and whatever else the format tells, in the order of the file."""
        events = self._read()[0].events
        return [event for event in events if event.kind not in without] if without else events

    def event_stream(self, kinds: Collection[str]) -> Iterator[RecordedEvent]:
        """Of the events those of these kinds, in the order of the file."""
        metrics, attempts = self._read()
        places = metrics.event_places
        of = None if places is None else _attempts_at(attempts, places)
        for number, event in enumerate(metrics.events):
            if event.kind in kinds:
                yield RecordedEvent(event, 0, None if of is None else int(of[number]))

    def side_columns(self) -> SideColumns:
        """Figures of routers and the throughput, in the order of the file."""
        metrics, attempts = self._read()
        beside = metrics.beside
        return SideColumns.empty() if beside is None else beside.columns(_attempts_at(attempts, beside.place))

    def id_columns(self) -> IdColumns:
        """None: there are no rows."""
        return IdColumns.empty()

    def restarts(self) -> tuple[int, ...]:
        """Attempts that are runs of their own: their steps begin again at or before the first."""
        return self._read()[1].restarts

    def _read(self, progress: Progress | None = None) -> tuple[Metrics, Attempts]:
        if self._metrics is None or self._attempts is None:
            try:
                self._metrics = self._read_metrics(progress)
            except OSError as error:
                raise LogError(
                    f"{self.path}: reading failed ({error.strerror}). Copy the file and try again."
                ) from error
            self._attempts = find_attempts(self._metrics.records)
        return self._metrics, self._attempts


def _attempts_at(attempts: Attempts, places: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """The attempt (N,) that each of some places in the file (N,) lies in; what stands before the first is of it."""
    begins = np.array([begin.place for begin in attempts.begins], np.int64)
    return np.maximum(np.searchsorted(begins, np.asarray(places, np.int64), side="right"), 1).astype(np.int32)


def _on_no_step(metrics: Metrics) -> list[str]:
    """What there is in place of training steps."""
    num_evaluations = sum(event.kind == EVALUATION_EVENT for event in metrics.events)
    if metrics.records.num_records or not num_evaluations:
        return []
    held = "1 evaluation" if num_evaluations == 1 else f"{num_evaluations} evaluations"
    return [f"it holds {held} and no loss of a training step"]


def _on_attempts(attempts: Attempts, *, place: str) -> list[str]:
    """How many runs and attempts there are, and what stands twice."""
    said = []
    runs = [(number, begin) for number, begin in enumerate(attempts.begins) if begin.is_run]
    resumed = [begin for begin in attempts.begins if not begin.is_run]
    if len(runs) > 1:
        lasts = _last_steps(attempts)
        ends = [number for number, _ in runs[1:]] + [len(attempts.begins)]
        named = [
            f"steps {begin.step} to {max(lasts[number:end])} from {place} {begin.place} on"
            for (number, begin), end in zip(runs[:MAX_NAMED], ends[:MAX_NAMED], strict=True)
        ]
        more = f"; and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        said.append(f"{len(runs)} runs in one file, each judged by itself: {'; '.join(named)}{more}")
    if resumed:
        where = ", ".join(f"step {begin.step} ({place} {begin.place})" for begin in resumed[:MAX_NAMED])
        more = f" and {len(resumed) - MAX_NAMED} times more" if len(resumed) > MAX_NAMED else ""
        said.append(f"the run was resumed at {where}{more}: the steps go back there")
    if attempts.first_double is not None:
        step, at = attempts.first_double
        again = f"step {step} again in {place} {at}"
        twice = "a step stands twice,"
        if attempts.num_doubles > 1:
            twice = f"{attempts.num_doubles} losses were left out whose step stands again, the first"
        said.append(f"{twice} {again}: the last counts")
    return said


def _last_steps(attempts: Attempts) -> list[int]:
    """The last step of each attempt; records ascend by attempt, and by step inside one."""
    ends = np.flatnonzero(np.diff(attempts.attempt, append=attempts.attempt[-1:] + 1))
    last: list[int] = attempts.records.step[ends].tolist()
    return last
