"""What is told and written of a training: rows of the history, lines on the console, evaluations.

In go measured steps, which wait in a buffer, and evaluations; out come rows and lines. Invariant: whatever fails here
(a full disk, a figure that raises, a console) is said once, and costs neither a step nor a save.
"""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

from recipes.twin_moe.console import Contained, Tell, eval_line, round_trip_line, step_line
from recipes.twin_moe.engine import Engine, Evaluated, Measured
from recipes.twin_moe.history import History
from recipes.twin_moe.rows import eval_row, fetch, segment_row, step_row
from recipes.twin_moe.segments import Start
from trimtab.checkpoint import CheckpointInfo, RoundTrip


class Telemetry:
    """Writes and tells what becomes of a training.

    Args:
        engine: The training.
        history: Where rows go.
        start: How it starts.
        tell: What to do with a line for the person who waits.
    """

    def __init__(self, engine: Engine, history: History, *, start: Start, tell: Tell) -> None:
        self._engine = engine
        self._history = history
        self._start = start
        self._segment = start.segment.number
        self._tell = tell
        self._begins_at_step = engine.step + 1
        self._has_begun = False
        self._measured: list[Measured] = []
        self._since = time.perf_counter()
        self._eval_pace = Pace()
        self._contained = Contained(tell=tell, step=lambda: engine.step)

    def take(self, measured: Measured) -> None:
        """Takes a step; nothing of it is looked at yet."""
        self._measured.append(measured)

    def flush(self, *, tells: bool) -> None:
        """Writes the steps that were taken since, which waits for the device. Raises nothing but a guard's lock-up.

        Args:
            tells: Whether to tell the last of them.
        """
        self._contained("history", lambda: self._flush(tells=tells))

    def evaluate(self) -> None:
        """Evaluates, and writes and tells what it says. Raises nothing but a guard's lock-up."""
        self._contained("evaluation", self._evaluate)
        self.resume_clock()

    def best_eval(self) -> dict[str, Any] | None:
        """The best evaluation, for a checkpoint; None where there was none, or it cannot be told."""
        return self._contained("best evaluation", self._engine.best_eval)

    def resume_clock(self) -> None:
        """Leaves the time that an evaluation or a save took out of the tokens a second."""
        self._since = time.perf_counter()

    def checked(self, checkpoint: CheckpointInfo) -> RoundTrip | None:
        """Loads what was just saved once more, and tells what came of it; None where that failed."""
        checked = self._contained("round trip", lambda: self._engine.round_trip(checkpoint))
        if checked is not None:
            self._contained("telling of the round trip", lambda: self._tell_round_trip(checked))
        return checked

    # Within.

    def _flush(self, *, tells: bool) -> None:
        measured, self._measured = self._measured, []
        if not measured:
            return
        engine = self._engine
        figures = fetch(measured)
        now = time.perf_counter()  # the figures have arrived: the device has done these steps
        pace = Pace(num_tokens=len(measured) * engine.num_tokens, seconds=now - self._since)
        self._since = now
        self._eval_pace = self._eval_pace.plus(pace)
        rows = [
            step_row(
                engine,
                step,
                sums,
                segment=self._segment,
                tokens_per_s=pace.tokens_per_s,
                contained=self._contained,
            )
            for step, sums in zip(measured, figures, strict=True)
        ]
        self._history.append([*self._first_row(), *rows])
        if tells:
            self._tell(step_line(rows[-1]))

    def _first_row(self) -> list[dict[str, Any]]:
        """The row of this call, before its first step: a run has its id only then."""
        if self._has_begun:
            return []
        self._has_begun = True
        return [
            segment_row(
                self._engine,
                start=self._start,
                begins_at_step=self._begins_at_step,
            )
        ]

    def _evaluate(self) -> None:
        engine = self._engine
        found = engine.evaluate()
        # The best and the streak are those with this evaluation, which the watch counts; else they are not known.
        is_recorded = self._contained("record of the evaluation", lambda: self._record(found))
        row = eval_row(
            engine,
            found,
            best=self.best_eval() if is_recorded else None,
            segment=self._segment,
            tokens_per_s=self._eval_pace.tokens_per_s,
            contained=self._contained,
        )
        self._eval_pace = Pace()
        self._history.append([row])
        self._tell(eval_line(row))

    def _record(self, found: Evaluated) -> Literal[True]:
        beside = {name: figure for name, figure in found._asdict().items() if name not in ("step", "ce")}
        self._engine.run.evaluation(found.ce, **beside)
        return True

    def _tell_round_trip(self, checked: RoundTrip) -> None:
        if checked.same:  # else Trimtab has said what differs
            self._tell(round_trip_line(checked))


class Pace(NamedTuple):
    """Tokens, and the seconds that they took."""

    num_tokens: int = 0
    seconds: float = 0.0

    def plus(self, other: Pace) -> Pace:
        """Both, one after the other."""
        return Pace(num_tokens=self.num_tokens + other.num_tokens, seconds=self.seconds + other.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second; None where there was no time."""
        return self.num_tokens / self.seconds if self.seconds > 0 else None
