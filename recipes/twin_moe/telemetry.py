"""What is told and written of a training: rows of the history, lines on the console, evaluations.

In go measured steps, which wait in a buffer, and evaluations; out come rows and lines. Invariant: whatever fails here
(a full disk, a figure that raises, a console) is said once, and costs neither a step nor a save.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import trimtab
from recipes.twin_moe.console import Tell, eval_line, reason, step_line
from recipes.twin_moe.engine import Engine, Measured
from recipes.twin_moe.history import History
from recipes.twin_moe.rows import eval_row, fetch, segment_row, step_row
from recipes.twin_moe.segments import Start

_Result = TypeVar("_Result")


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
        self._failed: set[str] = set()

    def take(self, measured: Measured) -> None:
        """Takes a step; nothing of it is looked at yet."""
        self._measured.append(measured)

    def flush(self, *, tells: bool) -> None:
        """Writes the steps that were taken since, which waits for the device. Raises nothing but a guard's lock-up.

        Args:
            tells: Whether to tell the last of them.
        """
        self.contained("history", lambda: self._flush(tells=tells))

    def evaluate(self) -> None:
        """Evaluates, and writes and tells what it says. Raises nothing but a guard's lock-up."""
        self.contained("evaluation", self._evaluate)
        self.resume_clock()

    def best_eval(self) -> dict[str, Any] | None:
        """The best evaluation, for a checkpoint; None where there was none, or it cannot be told."""
        return self.contained("best evaluation", self._engine.best_eval)

    def resume_clock(self) -> None:
        """Leaves the time that an evaluation or a save took out of the tokens a second."""
        self._since = time.perf_counter()

    def contained(self, what: str, action: Callable[[], _Result]) -> _Result | None:
        """Does what must not cost a save; a failure is said, once for each `what`.

        Args:
            what: What is done, in a word.
            action: Does it.

        Raises:
            GuardLockupError: A guard that is set to raise is a decision, and no telemetry.
        """
        try:
            return action()
        except trimtab.GuardLockupError:
            raise
        except Exception as error:  # noqa: BLE001 - telemetry never costs a save
            if what not in self._failed:
                self._failed.add(what)
                self._tell(
                    f"{what} failed at step {self._engine.step}: {reason(error)}. Training and saves go on; this is "
                    "not said again"
                )
            return None

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
            step_row(engine, step, sums, segment=self._segment, tokens_per_s=pace.tokens_per_s)
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
        beside = {name: figure for name, figure in found._asdict().items() if name not in ("step", "ce")}
        engine.run.evaluation(found.ce, **beside)
        row = eval_row(engine, found, segment=self._segment, tokens_per_s=self._eval_pace.tokens_per_s)
        self._eval_pace = Pace()
        self._history.append([row])
        self._tell(eval_line(row))


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
