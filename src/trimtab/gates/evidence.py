"""What the gates judge by: all that is read of a log, read once.

    rows, step records -> the last run; of what was trained twice, the later attempt -> the chunk and its steps
    events             -> how attempts began and ended, round trips
    steps and events   -> the rules of a watch -> its findings, and what stands at the end

Enters: an opened log. Leaves: `Evidence`. Invariant: what an attempt found further on than the run is now counts for
nothing: it was on a way that the run was taken back from.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.analysis import remarks
from trimtab.analysis.attempts import StepReading, read_runs, up_to_now
from trimtab.analysis.health import AtEnd, Health, judge_health
from trimtab.analysis.several_runs import JudgedRun, judge_runs
from trimtab.errors import LogError, UsageError
from trimtab.gates.attempts_told import AttemptsTold, read_attempts
from trimtab.gates.chunk_steps import ChunkSteps, read_chunk, without_open_step
from trimtab.gates.values import Chunk
from trimtab.log.reader import Log, open_log
from trimtab.resume.checksum import Progress
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What a log says of the chunk that a run ended with.

    Attributes:
        log: The log.
        runs: The runs in it; the last one is judged, cut where it is now.
        chunk: What is judged.
        steps: Its steps.
        told: What events tell of attempts.
        health: What a watch finds in the log, and what it left of the chunk.
    """

    log: Log
    runs: Sequence[JudgedRun]
    chunk: Chunk
    steps: ChunkSteps
    told: AttemptsTold
    health: Health

    @property
    def run_id(self) -> str | None:
        """The run's id; None where the log names none."""
        return self.log.header.run_id

    @property
    def reading(self) -> StepReading:
        """The run that is judged."""
        return self.runs[-1].reading

    @property
    def at_end(self) -> AtEnd:
        """Its findings, what stands at its end, and what its watch left of the chunk."""
        return self.health.at_end

    @property
    def settings(self) -> WatchConfig:
        """Settings of the watch that it ended with; the usual ones where it had none."""
        stated = self.told.watches.get(self.chunk.attempts[-1])
        return WatchConfig() if stated is None else stated.config

    def rewind(self, *, step: int | None = None) -> str:
        """The command that tells more of this log, or of a step of it; by its path, for a copy has the same run id."""
        path = min(self.log.path, os.path.relpath(self.log.path), key=len)
        return plain(shlex.join(["trimtab", "rewind", path, *(["--step", str(step)] if step is not None else [])]))

    @property
    def num_missing(self) -> int:
        """Steps of the chunk that the log does not hold."""
        return self.chunk.last_step - self.chunk.first_step + 1 - self.chunk.num_steps

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
    last = without_open_step(log, up_to_now(last))
    runs = judge_runs([*before, last], rule="robust")
    told = read_attempts(log)
    chunk, steps = read_chunk(log, last, told=told, since=since)
    health = judge_health(log, runs, stretch=(chunk.first_step, chunk.last_step))
    return Evidence(log=log, runs=runs, chunk=chunk, steps=steps, told=told, health=health)


def _as_more(progress: Progress) -> Callable[[int], None]:
    """What takes the bytes read so far, and hands on how many more they are."""
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        progress(num_bytes - done)
        done = num_bytes

    return report
