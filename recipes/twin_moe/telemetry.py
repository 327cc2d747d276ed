"""What is told and written of a training: rows of the history, lines on the console, evaluations.

In go measured steps, which wait in a buffer, and evaluations; out come rows and lines. Invariant: whatever fails here
(a full disk, a figure that raises, a console) is said once, and costs neither a step nor a save.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

import torch

import trimtab
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.console import Tell, eval_line, reason, step_line
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.history import SCALES, History, Measured, step_rows
from trimtab import memory
from trimtab.errors import GuardLockupError

_Result = TypeVar("_Result")

NO_BEST: Final = {"best": None, "best_step": None, "num_worse": None}


class Telemetry:
    """Writes and tells what becomes of a training.

    Args:
        engine: The training.
        history: Where rows go.
        segment: The number of its segment.
        resumed_from: The checkpoint that it goes on from, as text; None: it begins.
        tell: What to do with a line for the person who waits.
        clock: Seconds, of whatever beginning.
    """

    def __init__(
        self,
        engine: Engine,
        history: History,
        *,
        segment: int,
        resumed_from: str | None,
        tell: Tell,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._history = history
        self._segment = segment
        self._resumed_from = resumed_from
        self._tell = tell
        self._clock = clock
        self._begins_at_step = engine.step + 1
        self._has_begun = False
        self._measured: list[Measured] = []
        self._since = clock()
        self._eval_pace = Pace()
        self._failed: set[str] = set()

    def take(self, measured: Measured) -> None:
        """Takes a step; nothing of it is looked at yet."""
        self._measured.append(measured)

    def flush(self, *, tells: bool) -> None:
        """Writes the steps that were taken since, which waits for the device. Never raises.

        Args:
            tells: Whether to tell the last of them.
        """
        self.contained("history", lambda: self._flush(tells=tells))

    def evaluate(self) -> None:
        """Evaluates, and writes and tells what it says. Raises nothing but a guard's lock-up."""
        self.contained("evaluation", self._evaluate)
        self.resume_clock()

    def resume_clock(self) -> None:
        """Leaves the time that an evaluation or a save took out of the tokens a second."""
        self._since = self._clock()

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
        except GuardLockupError:
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
        config = self._engine.config
        rows = step_rows(
            measured,
            accumulation=config.accumulation,
            optim=config.optim,
            segment=self._segment,
            run_id=self._engine.run.run_id,
            tokens_per_s=None,
            device_memory_bytes=_device_peak_bytes(self._engine.device),
        )
        now = self._clock()  # the figures have arrived: the device has done these steps
        pace = Pace(num_tokens=len(measured) * self._engine.num_tokens, seconds=now - self._since)
        self._since = now
        self._eval_pace = self._eval_pace.plus(pace)
        for row in rows:
            row["tokens_per_s"] = pace.tokens_per_s
        self._history.append([*self._segment_rows(), *rows])
        if tells:
            self._tell(step_line(rows[-1]))

    def _segment_rows(self) -> list[dict[str, Any]]:
        """The row of this call, before its first step: a run has its id only then."""
        if self._has_begun:
            return []
        self._has_begun = True
        return [
            segment_row(
                self._engine.config,
                segment=self._segment,
                run_id=self._engine.run.run_id,
                begins_at_step=self._begins_at_step,
                resumed_from=self._resumed_from,
                device=self._engine.device,
            )
        ]

    def _evaluate(self) -> None:
        engine = self._engine
        found = engine.evaluate()
        engine.run.evaluation(
            found.ce,
            z=found.z,
            population_shares=list(found.population_shares),
            dead_fraction=found.dead_fraction,
        )
        best = engine.best_eval() or NO_BEST
        row = {
            "kind": "eval",
            "segment": self._segment,
            "run_id": engine.run.run_id,
            "step": found.step,
            "eval_loss": found.ce,
            "ce": found.ce,
            "z": found.z,
            "population_shares": list(found.population_shares),
            "dead_fraction": found.dead_fraction,
            "clip_fraction": engine.run.watch_figures().get("clip_fraction"),
            "regress_streak": best["num_worse"],
            "best_eval": best["best"],
            "best_eval_step": best["best_step"],
            "tokens_per_s": self._eval_pace.tokens_per_s,
            "device_memory_bytes": _device_peak_bytes(engine.device),
            "host_available_bytes": memory.available_bytes(),
        }
        self._eval_pace = Pace()
        self._history.append([row])
        self._tell(eval_line(row))


class Pace:
    """Tokens, and the seconds that they took.

    Args:
        num_tokens: How many.
        seconds: How long.
    """

    def __init__(self, *, num_tokens: int = 0, seconds: float = 0.0) -> None:
        self.num_tokens, self.seconds = num_tokens, seconds

    def plus(self, other: Pace) -> Pace:
        """Both, one after the other."""
        return Pace(num_tokens=self.num_tokens + other.num_tokens, seconds=self.seconds + other.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second; None where there was no time."""
        return self.num_tokens / self.seconds if self.seconds > 0 else None


def segment_row(
    config: TwinConfig,
    *,
    segment: int,
    run_id: str | None,
    begins_at_step: int,
    resumed_from: str | None,
    device: torch.device,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """The row that says what the rows behind it are of: of each call that trains, one."""
    versions: Mapping[str, str] = {
        "trimtab": trimtab.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    return {
        "kind": "segment",
        "segment": segment,
        "run_id": run_id,
        "preset": config.preset,
        "begins_at_step": begins_at_step,
        "resumed_from": resumed_from,
        "scales": dict(SCALES),
        "settings": asdict(config),
        "device": str(device),
        "versions": dict(versions),
        "time": clock(),
    }


def _device_peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
