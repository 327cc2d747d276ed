"""Whether a figure rises: over four reports in a row, or over four groups of them, so that slow growth is seen too.

Positive finite numbers come in, one a report; whether and over how many reports they rose goes out. Level 0 holds the
last four values, level n the medians of the last four groups of 4^n: 4 numbers a level, whatever the run's length.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final, NamedTuple

from trimtab.rules.robust import MAD_TO_SIGMA
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_entries
from trimtab.rules.window import middle

WINDOW: Final = 4
"""Values of a window; 14, 16, 19, 24 are four."""

NUM_LEVELS: Final = 5
"""The longest window is 4 x 4^4 = 1,024 reports: 51,200 steps at a report every 50."""

LEAST_RISE: Final = 1.05
"""Each value of a window lies this factor above the one before it, or it is a jump or noise and no trend."""

NUM_CHANGES: Final = 16
"""Changes from one report to the next that the noise is taken from; nothing is known of it before half as many."""

NOISE: Final = 6.0
"""Standard deviations of a change that four reports rise by, whatever the factor asked for: with 14 layers and hundreds
of reports, four values that rise by chance are no rarity."""

STILL_THERE: Final = 0.9
"""Part of a window's last value under which the newest one has come back, whatever the window says."""


_MAX_EXPONENT: Final = 700.0


class Rise(NamedTuple):
    """A rise over a window.

    Attributes:
        first: The window's first value.
        last: Its last one.
        num_reports: Reports that it spans.
    """

    first: float
    last: float
    num_reports: int


class Trend:
    """The course of one figure.

    Args:
        num_levels: How many window lengths are held: 4, 16, 64 ... reports.
    """

    __slots__ = ("_changes", "_levels", "_waiting")

    def __init__(self, *, num_levels: int = NUM_LEVELS) -> None:
        self._levels: list[list[float]] = [[] for _ in range(num_levels)]
        self._waiting: list[list[float]] = [[] for _ in range(num_levels)]
        self._changes: list[float] = []

    @property
    def newest(self) -> float | None:
        """The value absorbed last."""
        return self._levels[0][-1] if self._levels[0] else None

    @property
    def highest(self) -> float | None:
        """The largest value held, of values that are further back the largest median."""
        return max((value for level in self._levels for value in level), default=None)

    def absorb(self, value: float) -> None:
        """Takes in one positive finite value."""
        if self._levels[0]:
            self._changes.append(math.log(value / self._levels[0][-1]))
            del self._changes[:-NUM_CHANGES]
        for level, waiting in zip(self._levels, self._waiting, strict=True):
            level.append(value)
            del level[:-WINDOW]
            waiting.append(value)
            if len(waiting) < WINDOW:
                return
            value = middle(sorted(waiting))
            waiting.clear()

    def rise(self, factor: float, *, longest: int | None = None, may_accelerate: bool = False) -> Rise | None:
        """The shortest window that rises by this factor; None where none does.

        Args:
            factor: Last value of the window over its first one.
            longest: Reports of the longest window looked at; None: all.
            may_accelerate: Whether noise is what was before the window: a rise that gets steeper is then no noise of
                its own, and a noise that begins with it is not known.
        """
        for place, level in enumerate(self._levels):
            num_reports = WINDOW ** (place + 1)
            if len(level) < WINDOW or (longest is not None and num_reports > longest):
                return None
            rises = all(after >= before * LEAST_RISE for before, after in pairwise(level))
            if not rises or level[-1] < factor * level[0] or self._levels[0][-1] < STILL_THERE * level[-1]:
                continue
            if place or level[-1] >= self._beyond_noise(may_accelerate=may_accelerate) * level[0]:
                return Rise(level[0], level[-1], num_reports)
        return None

    def is_flat(self) -> bool:
        """Whether the last four reports end no higher than they began."""
        window = self._levels[0]
        return len(window) == WINDOW and window[-1] <= window[0]

    def _beyond_noise(self, *, may_accelerate: bool) -> float:
        """Factor that noise alone does not reach over a window, steady growth being none."""
        changes = self._changes[: 1 - WINDOW] if may_accelerate else self._changes
        if len(changes) < NUM_CHANGES // 2:
            return 1.0
        usual = middle(sorted(changes))
        return math.exp(min(_MAX_EXPONENT, NOISE * MAD_TO_SIGMA * middle(sorted(abs(x - usual) for x in changes))))

    def state_dict(self) -> dict[str, Any]:
        """What is held, as plain lists."""
        return {
            "levels": [list(level) for level in self._levels],
            "waiting": [list(level) for level in self._waiting],
            "changes": list(self._changes),
        }

    @classmethod
    def from_state(cls, state: Any, *, num_levels: int = NUM_LEVELS) -> Trend:
        """The course that a `state_dict()` holds; `UsageError` if it is none."""
        names = ("levels", "waiting", "changes")
        levels, waiting, changes = read_entries(state, names, where="the course of a figure")
        if not isinstance(changes, list) or len(changes) > NUM_CHANGES or not all(map(is_finite, changes)):
            raise damaged(f"the course of a figure holds {spelled(changes)}, not {NUM_CHANGES} changes at most")
        trend = cls(num_levels=num_levels)
        trend._levels = _read_levels(levels, num_levels=num_levels, most=WINDOW)
        trend._waiting = _read_levels(waiting, num_levels=num_levels, most=WINDOW - 1)
        trend._changes = [float(change) for change in changes]
        return trend


def _read_levels(found: Any, *, num_levels: int, most: int) -> list[list[float]]:
    if not isinstance(found, list | tuple) or len(found) != num_levels:
        raise damaged(f"the course of a figure holds {spelled(found)}, not {num_levels} lists")
    for level in found:
        if not isinstance(level, list | tuple) or len(level) > most or not all(is_finite(x) and x > 0 for x in level):
            raise damaged(f"the course of a figure holds {spelled(level)}, not {most} positive numbers at most")
    return [[float(value) for value in level] for level in found]
