"""What the gates judge by: all that is read of a log, read once.

    rows, step records -> the last run; of what was trained twice, the later attempt -> the chunk and its steps
    events             -> how attempts began and ended, round trips
    steps and events   -> the rules of a watch -> its findings, and what stands at the end

Enters: an opened log. Leaves: `Evidence`. Invariant: what an attempt found further on than the run is now counts for
nothing: it was on a way that the run was taken back from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.analysis import remarks
from trimtab.analysis.attempts import StepReading, read_runs
from trimtab.analysis.health import AtEnd, Health, judge_health
from trimtab.analysis.series import StepSeries
from trimtab.analysis.several_runs import JudgedRun, judge_runs
from trimtab.errors import LogError, UsageError
from trimtab.gates.attempts_told import AttemptsTold, StatedWatch, read_attempts
from trimtab.gates.chunk_steps import ChunkSteps, read_chunk
from trimtab.gates.reports_seen import ReportsSeen
from trimtab.gates.values import Chunk
from trimtab.log.reader import Log, open_log
from trimtab.log.source import RecordedEvent
from trimtab.resume.checksum import Progress
from trimtab.values import Event


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What a log says of the chunk that a run ended with.

    Attributes:
        log: The log.
        runs: The runs in it; the last one is judged, cut where it is now.
        chunk: What is judged.
        steps: Its steps.
        told: What events tell of attempts.
        health: What a watch finds in the log.
        reports: The reports of routers in the chunk, and the evaluations of the run.
    """

    log: Log
    runs: Sequence[JudgedRun]
    chunk: Chunk
    steps: ChunkSteps
    told: AttemptsTold
    health: Health
    reports: ReportsSeen

    @property
    def run_id(self) -> str | None:
        """The run's id; None where the log names none."""
        return self.log.header.run_id

    @property
    def reading(self) -> StepReading:
        """The run that is judged."""
        return self.runs[-1].reading

    @property
    def series(self) -> StepSeries:
        """Its steps, as far as it is now."""
        return self.reading.series

    @property
    def at_end(self) -> AtEnd:
        """Its findings, and what stands at its end."""
        return self.health.at_end

    @property
    def evaluations(self) -> Sequence[Event]:
        """Its evaluations, in their order."""
        return self.reports.evaluations

    @property
    def round_trips(self) -> Sequence[RecordedEvent]:
        """Checkpoints that were loaded again while it trained, in the order recorded."""
        return self.told.round_trips

    @property
    def watch(self) -> StatedWatch | None:
        """The watch that it ended with; None where it had none."""
        return self.told.watches.get(self.chunk.attempts[-1])

    @property
    def unwatched(self) -> tuple[int, ...]:
        """Attempts of the chunk without a watch."""
        return tuple(attempt for attempt in self.chunk.attempts if attempt not in self.told.watches)


def read_evidence(
    source: Log | str | os.PathLike[str], *, since: int | None = None, progress: Progress | None = None
) -> Evidence:
    """Reads all that gates look at, the checkpoint aside.

    Args:
        source: A log, or the path of one.
        since: The chunk begins with the step after this one; None: where the run last stopped in good order.
        progress: Called now and then with how many more bytes were read.

    Raises:
        LogError: The log cannot be read, or it holds no training step, or none after `since`.
        UsageError: `since` is no step.
    """
    if since is not None and since < 0:
        raise UsageError(f"since={since} makes no sense: use an optimizer step, or 0 for the whole run.")
    log = source if isinstance(source, Log) else open_log(source)
    *before, last = read_runs(log, progress=None if progress is None else _as_more(progress))
    if not last.series.num_steps:
        raise LogError(f"{log.path}: {remarks.why_no_step(log.notices())}")
    last = _up_to_now(last)
    runs = judge_runs([*before, last], rule="robust")
    told = read_attempts(log)
    chunk, steps = read_chunk(log, last, ends=told.ends, since=since)
    reports = ReportsSeen(chunk)
    health = judge_health(log, runs, look=reports)
    return Evidence(log=log, runs=runs, chunk=chunk, steps=steps, told=told, health=health, reports=reports)


def _up_to_now(reading: StepReading) -> StepReading:
    """A run without the steps that its newest attempt has not reached."""
    if not reading.not_reached.any():
        return reading
    kept = ~reading.not_reached
    return reading._replace(
        series=StepSeries._make(column[kept] for column in reading.series),
        not_reached=np.zeros(int(np.count_nonzero(kept)), np.bool_),
    )


def _as_more(progress: Progress) -> Callable[[int], None]:
    """What takes the bytes read so far, and hands on how many more they are."""
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        progress(num_bytes - done)
        done = num_bytes

    return report
