"""The values a rule compares with: the last `size` absorbed ones, by age and by size.

Finite float32 values come in, held as float64; mean, median and median absolute deviation go out. Invariant: both
orders hold the same values, so a statistic never depends on the order in which the values arrived.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from ctypes import c_float
from typing import Any

from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_entries


def float32(x: float) -> float:
    """The float32 nearest to `x`, as a Python float; what float32 cannot hold becomes infinite, NaN stays NaN."""
    try:
        return c_float(x).value
    except OverflowError:  # an int beyond every float
        return math.inf if x > 0 else -math.inf


def read_losses(values: Any, *, where: str) -> list[float]:
    """The finite float32 values of a saved list.

    Args:
        values: What should be that list.
        where: What it belongs to.

    Raises:
        UsageError: It is something else; says what was found.
    """
    if not isinstance(values, list):
        raise damaged(f"{where} holds {spelled(values)}, not a list")
    for value in values:
        if not is_finite(value) or float32(value) != value:
            raise damaged(f"{where} holds {spelled(value)}, which is no finite float32 value")
    return [float(value) for value in values]


def middle(ordered: list[float]) -> float:
    """Median of an ordered list that is not empty; of an even number, the mean of the two middle values."""
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


class Window:
    """The last `size` values; the statistics need at least one.

    A sorted copy is kept by bisection, which makes the median a look-up.

    Args:
        size: How many values are held at most, 1 or more.
    """

    __slots__ = ("_by_age", "_by_size", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_age: deque[float] = deque()
        self._by_size: list[float] = []

    def __len__(self) -> int:
        return len(self._by_age)

    def absorb(self, x: float) -> None:
        """Takes in one finite float32 value; the oldest leaves when the window is full."""
        if len(self._by_age) == self.size:
            del self._by_size[bisect_left(self._by_size, self._by_age.popleft())]
        self._by_age.append(x)
        insort(self._by_size, x)

    def clear(self) -> None:
        """Forgets every value."""
        self._by_age.clear()
        self._by_size.clear()

    def replace(self, values: Iterable[float]) -> None:
        """Holds the most recent `size` of `values` (oldest first) and nothing else."""
        self._by_age = deque(values, maxlen=self.size)
        self._by_size = sorted(self._by_age)

    def values(self) -> list[float]:
        """The values, oldest first."""
        return list(self._by_age)

    @property
    def newest(self) -> float:
        """The value absorbed last."""
        return self._by_age[-1]

    def mean(self) -> float:
        """Arithmetic mean; the sum is exact before it is rounded once, so the order of arrival cannot matter."""
        return math.fsum(self._by_age) / len(self._by_age)

    def median(self) -> float:
        """Median; of an even number of values, the mean of the two middle ones."""
        return middle(self._by_size)

    def mad(self) -> float:
        """Median absolute deviation from the median, unscaled."""
        median = middle(self._by_size)
        # Over sorted values the deviations fall and then rise: two runs, which the sort merges in linear time.
        return middle(sorted([abs(x - median) for x in self._by_size]))

    def state_dict(self) -> dict[str, list[float]]:
        """The values, oldest first, under `values`."""
        return {"values": self.values()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Takes over the values of a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        (values,) = read_entries(state, ("values",), where="window")
        values = read_losses(values, where="window")
        if len(values) > self.size:
            raise damaged(f"it has {len(values)} values in a window of {self.size}")
        self.replace(values)
