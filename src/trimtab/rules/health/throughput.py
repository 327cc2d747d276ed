"""Tokens a second: when a run goes on at a fraction of its usual pace.

Enters: steps with their tokens and seconds. Leaves: a finding `throughput`. Invariant: a slow step never enters the
baseline, so a run that stays slow does not become usual.

A step is slow where it has a third of the usual tokens a second *and* takes more than twice the usual time: batches
with few supervised tokens lower the first alone. A pause (an evaluation, a save) is one step, a compilation a few: ten
slow ones in a row that last 20 seconds are neither. Where a log tells a pace without tokens or seconds the steps alone
count. The run behind the rule fell from 1,322 to between 170 and 227
tokens a second.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.said import Said, Standing
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

    name: ClassVar[str] = "throughput"

    def __init__(self, config: WatchConfig) -> None:
        self._fraction = config.throughput_fraction
        self._patience = config.throughput_patience
        self._said = Said()
        self._paces = Window(_WINDOW_SIZE)
        self._seconds = Window(_WINDOW_SIZE)
        self._num_slow = 0
        self._slow_s = 0.0
        self._num_back = 0

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs the pace of a step."""
        pace, seconds = _pace(item)
        if pace is None:
            return ()
        if len(self._paces) < _MIN_HISTORY:
            self._absorb(pace, seconds)
            return ()
        usual = self._paces.median()
        takes_no_longer = seconds is not None and len(self._seconds) > 0 and seconds <= _SLOWER * self._seconds.median()
        if pace >= self._fraction * usual or takes_no_longer:
            self._num_slow, self._slow_s = 0, 0.0
            self._num_back = self._num_back + 1 if pace >= _BACK * usual else 0
            if self._num_back >= self._patience:
                self._said.end()
            self._absorb(pace, seconds)
            return ()
        self._num_slow += 1
        self._slow_s += seconds or 0.0
        self._num_back = 0
        if self._num_slow < self._patience or (seconds is not None and self._slow_s < _LEAST_SLOW_S):
            return ()
        lasted = "" if seconds is None else f" ({self._slow_s:,.0f} s)"
        finding = WatchFinding(
            kind="throughput",
            severity="warning",
            step=item.step,
            text=f"{pace:,.4g} tokens a second, {pace / usual:.0%} of the usual {usual:,.4g}, and so for "
            f"{self._num_slow} steps in a row{lasted}",
            figures={"tokens_per_s": pace, "usual": usual, "ratio": pace / usual, "num_slow": self._num_slow},
            since_step=item.step - self._num_slow,
        )
        return self._said.say(finding)

    @property
    def usual(self) -> float | None:
        """Median of tokens a second; None before the first step of which they are known."""
        return self._paces.median() if len(self._paces) else None

    def standing(self) -> tuple[Standing, ...]:
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

    def _absorb(self, pace: float, seconds: float | None) -> None:
        self._paces.absorb(pace)
        if seconds is not None:
            self._seconds.absorb(seconds)


def _pace(item: ObservedStep) -> tuple[float | None, float | None]:
    """Tokens a second, and seconds where they are known: those of the clock, or of tokens at the pace that was told."""
    pace, seconds = item.tokens_per_s, item.wall_s
    if pace is None:
        if not (seconds > 0 and math.isfinite(seconds) and item.num_tokens > 0):
            return None, None
        pace = item.num_tokens / seconds
    elif not (math.isfinite(pace) and pace > 0):
        return None, None
    elif item.num_tokens > 0:
        seconds = item.num_tokens / pace
    pace, seconds = float32(pace), float32(seconds)
    if not (math.isfinite(pace) and pace > 0):
        return None, None
    return pace, seconds if math.isfinite(seconds) and seconds > 0 else None
