"""The rule `robust`: a spike lies more than k scales above the median, where the scale is the run's own noise.

A value comes in, `x - median > k * scale` (strictly, in float64) goes out; works for losses of any sign. Live, a
skipped value stays out of the window; offline every finite value is absorbed, so that a level shift ends (50 flags of
400 shifted values instead of 400): the caller's choice.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from trimtab.errors import UsageError
from trimtab.rules.scalar import spelled
from trimtab.rules.window import Window
from trimtab.rules.windowed import WindowedRule
from trimtab.values import Verdict

DEFAULT_K = 10.0
"""Scales above the median that are still normal, measured on published curves (see `RobustRule`)."""

MAD_TO_SIGMA = 1.4826
"""What turns a median absolute deviation into the standard deviation of normal noise."""

RELATIVE_FLOOR = 0.02
"""Smallest scale as a part of the median. A bf16 loss has 8 bits: 2.5 x 100, then 2.5078, is rounding, not noise."""

ABSOLUTE_FLOOR = 5e-5
"""Smallest scale. Logs print four decimals: 0.0001 x 20, then 0.0002, is half a last digit either way."""


class RobustRule(WindowedRule):
    """Compares the distance from the median with a robust scale of the window.

    The scale is the largest of 1.4826 MAD, 2 % of the median's size, and 5e-5. On published curves, at the defaults:
    3 flags on a noisy fine-tune of 24,000 losses, 24 and 34 on two large pretraining runs with single-batch spikes,
    none on five healthy runs (`tests/unit/rules/test_curves.py`).

    Args:
        k: How many scales above the median are still normal; finite and positive.
        window_size: How many values median and scale look back at most.
        min_history: How many values must lie behind before anything is compared.

    Raises:
        UsageError: A setting makes no sense.

    Example:
        >>> rule = RobustRule(min_history=3)
        >>> for loss in (-1.0, -1.1, -0.9):
        ...     rule.absorb(loss)
        >>> rule.judge(5.0).reason, rule.judge(-0.8).reason
        ('spike', 'normal')
    """

    name: ClassVar[str] = "robust"
    sensitivity: ClassVar[str] = "k"
    """Name of the setting that makes the rule more or less strict."""
    default_window_size: ClassVar[int] = 100
    default_min_history: ClassVar[int] = 20
    default_max_skips: ClassVar[int] = 20
    """As many as it needs behind it, so that the new window can be judged by at once."""

    def __init__(
        self,
        k: float = DEFAULT_K,
        *,
        window_size: int = default_window_size,
        min_history: int = default_min_history,
    ) -> None:
        super().__init__(window_size=window_size, min_history=min_history)
        _check_k(k)
        self._k = k

    @property
    def settings(self) -> dict[str, float]:
        """Every setting that decides, by the name of its argument."""
        return {"k": self._k, "window_size": self.window_size, "min_history": self.min_history}

    def needed(self, verdict: Verdict) -> float:
        """The smallest k under which a `spike` verdict would have been `normal`."""
        assert verdict.baseline is not None
        assert verdict.scale is not None
        return (verdict.loss - verdict.baseline) / verdict.scale

    def _compare(self, loss: float) -> Verdict:
        median = self._window.median()
        scale = robust_scale(self._window)
        margin = self._k * scale
        # Not `loss > median + margin`: that sum rounds, and every other place of this rule subtracts.
        if loss - median > margin:
            return Verdict(
                keep=False, reason="spike", loss=loss, baseline=median, threshold=median + margin, scale=scale
            )
        return Verdict(keep=True, reason="normal", loss=loss, baseline=median, threshold=median + margin, scale=scale)


def robust_scale(window: Window) -> float:
    """Noise of the values of a window that is not empty: the largest of 1.4826 MAD, 2 % of the median's size, 5e-5."""
    return max(MAD_TO_SIGMA * window.mad(), RELATIVE_FLOOR * abs(window.median()), ABSOLUTE_FLOOR)


def _check_k(k: float) -> None:
    """Refuses a k that is not a finite, positive number, with `UsageError`."""
    # Against the largest float, not infinity: an int beyond it is finite and yet no float.
    if isinstance(k, bool) or not isinstance(k, int | float) or not 0 < k <= sys.float_info.max:
        raise UsageError(
            f"k={spelled(k)} makes no sense: use a finite number above 0, for example 10.0 (scales above the median)."
        )
