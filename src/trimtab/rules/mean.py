"""The rule `mean`, the classic one: a spike exceeds a multiple of the mean of the last values.

A value comes in, `x > mean * multiplier` (strictly, in float64) goes out. Live, a skipped value stays out of the
window.
"""

from __future__ import annotations

from typing import ClassVar

from trimtab.rules.ratio import RatioRule


class MeanRule(RatioRule):
    """Compares with the arithmetic mean of the window.

    No multiplier transfers between runs: at x2 the rule fires on 125 of 24,000 micro-batches of a healthy small-batch
    fine-tune, and on none of the real single-batch spikes of a 1.5B pretraining run. `RobustRule` needs no such choice.

    Args:
        multiplier: How many means are still normal; finite and above 1.
        window_size: How many values the mean looks back at most.
        min_history: How many values must lie behind before anything is compared.

    Raises:
        UsageError: A setting makes no sense.

    Example:
        >>> rule = MeanRule(2.0)
        >>> for loss in (10.8, 7.5, 6.3):
        ...     rule.absorb(loss)
        >>> rule.judge(30.0).reason
        'spike'
    """

    name: ClassVar[str] = "mean"
    default_window_size: ClassVar[int] = 8
    default_min_history: ClassVar[int] = 3
    default_max_skips: ClassVar[int] = 8
    """One window: the skipped losses then replace all that it was judged by."""

    def __init__(
        self, multiplier: float, *, window_size: int = default_window_size, min_history: int = default_min_history
    ) -> None:
        super().__init__(multiplier, window_size=window_size, min_history=min_history)

    def _baseline(self) -> float:
        return self._window.mean()
