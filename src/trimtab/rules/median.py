"""The rule `median`, the classic offline one: a spike exceeds a multiple of the median of the last values.

A value comes in, `x > median * multiplier` (strictly, in float64) goes out. Offline every finite value is absorbed,
spikes too: the median shrugs off a few.
"""

from __future__ import annotations

from typing import ClassVar

from trimtab.rules.ratio import RatioRule


class MedianRule(RatioRule):
    """Compares with the median of the window.

    Args:
        multiplier: How many medians are still normal; finite and above 1.
        window_size: How many values the median looks back at most.
        min_history: How many values must lie behind before anything is compared.

    Raises:
        UsageError: A setting makes no sense.
    """

    name: ClassVar[str] = "median"

    def __init__(self, multiplier: float = 2.0, *, window_size: int = 20, min_history: int = 3) -> None:
        super().__init__(multiplier, window_size=window_size, min_history=min_history)

    def _baseline(self) -> float:
        return self._window.median()
