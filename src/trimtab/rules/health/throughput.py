"""Tokens a second: when a run goes on at a fraction of its usual pace.

Enters: steps with their tokens and seconds. Leaves: a finding `throughput`. Invariant: a slow step never enters the
baseline, so a run that stays slow does not become usual.

A step is slow where it has a third of the usual tokens a second *and* takes more than twice the usual time: batches
with few supervised tokens lower the first alone. A pause (an evaluation, a save) is one step, a compilation a few: ten
slow ones in a row that last 20 seconds are neither. The run behind the rule fell from 1,322 to between 170 and 227
tokens a second.
"""

from __future__ import annotations

import math
from typing import Any, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.health.standing import Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.rules.window import Window, float32
from trimtab.watched import WatchFinding

# As `RobustRule` has them: the median of a hundred, and nothing is said before there are twenty.
_WINDOW_SIZE: Final = 100
_MIN_HISTORY: Final = 20

# Usual seconds of a step that a slow one must exceed; a third of the pace means three of them for batches of like size.
_SLOWER: Final = 2.0

# Ten steps of a small model are some milliseconds, in which the machine may have had something else to do.
_LEAST_SLOW_S: Final = 20.0

# Over where the pace is back to this share of the usual one, as long as it was slow before it was said.
_BACK: Final = 0.5


class Throughput:
    """Compares each step with the median of the last hundred that were not slow."""

    def __init__(self, config: WatchConfig) -> None:
        self._fraction = config.throughput_fraction
        self._patience = config.throughput_patience
        self._said = Standing()
        self._paces = Window(_WINDOW_SIZE)
        self._seconds = Window(_WINDOW_SIZE)
        self._num_slow = 0
        self._slow_s = 0.0
        self._num_back = 0

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs the pace of a step."""
        if not (math.isfinite(item.wall_s) and item.wall_s > 0 and item.num_tokens > 0):
            return ()
        pace, seconds = float32(item.num_tokens / item.wall_s), float32(item.wall_s)
        if not math.isfinite(pace) or not math.isfinite(seconds):
            return ()
        if len(self._paces) < _MIN_HISTORY:
            self._absorb(pace, seconds)
            return ()
        usual = self._paces.median()
        if pace >= self._fraction * usual or seconds <= _SLOWER * self._seconds.median():
            self._num_slow, self._slow_s = 0, 0.0
            self._num_back = self._num_back + 1 if pace >= _BACK * usual else 0
            if self._num_back >= self._patience:
                self._said.end()
            self._absorb(pace, seconds)
            return ()
        self._num_slow += 1
        self._slow_s += seconds
        self._num_back = 0
        if self._num_slow < self._patience or self._slow_s < _LEAST_SLOW_S:
            return ()
        finding = WatchFinding(
            kind="throughput",
            severity="warning",
            step=item.step,
            text=f"{pace:,.4g} tokens a second, {pace / usual:.0%} of the usual {usual:,.4g}, and so for "
            f"{self._num_slow} steps in a row ({self._slow_s:,.0f} s)",
            figures={"tokens_per_s": pace, "usual": usual, "ratio": pace / usual, "num_slow": self._num_slow},
        )
        return self._said.say(finding)

    @property
    def usual(self) -> float | None:
        """Median of tokens a second; None before the first step of which they are known."""
        return self._paces.median() if len(self._paces) else None

    def standing(self) -> tuple[WatchFinding, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {
            "said": self._said.state_dict(),
            "paces": self._paces.state_dict(),
            "seconds": self._seconds.state_dict(),
            "num_slow": self._num_slow,
            "slow_s": self._slow_s,
            "num_back": self._num_back,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("said", "paces", "seconds", "num_slow", "slow_s", "num_back")
        said, paces, seconds, num_slow, slow_s, num_back = read_entries(state, keys, where="throughput")
        if not is_finite(slow_s):
            raise damaged(f"throughput's slow_s is {spelled(slow_s)}, not a finite number")
        self._said.load_state_dict(said)
        self._slow_s = float(slow_s)
        self._paces.load_state_dict(paces)
        self._seconds.load_state_dict(seconds)
        self._num_slow = read_count(num_slow, name="throughput's num_slow")
        self._num_back = read_count(num_back, name="throughput's num_back")

    def _absorb(self, pace: float, seconds: float) -> None:
        self._paces.absorb(pace)
        self._seconds.absorb(seconds)
