"""A value against a multiple of the baseline: what `mean` and `median` share.

A spike is `x > baseline * multiplier`, strictly. A ratio says nothing about a baseline of zero or below: such a value
is kept as `baseline_not_positive`. What happens to a spike is the caller's choice, see `absorb`.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import ClassVar

from trimtab.errors import UsageError
from trimtab.rules.scalar import spelled
from trimtab.rules.windowed import WindowedRule
from trimtab.values import Verdict


class RatioRule(WindowedRule):
    """A windowed rule whose threshold is a multiple of its baseline.

    Args:
        multiplier: How many baselines are still normal; finite and above 1.
        window_size: How many values the baseline looks back at most.
        min_history: How many values must lie behind before anything is compared.

    Raises:
        UsageError: A setting makes no sense.
    """

    sensitivity: ClassVar[str] = "multiplier"
    """Name of the setting that makes the rule more or less strict."""

    def __init__(self, multiplier: float, *, window_size: int, min_history: int) -> None:
        super().__init__(window_size=window_size, min_history=min_history)
        check_multiplier(multiplier)
        self._multiplier = multiplier

    @property
    def settings(self) -> dict[str, float]:
        """Every setting that decides, by the name of its argument."""
        return {"multiplier": self._multiplier, "window_size": self.window_size, "min_history": self.min_history}

    def needed(self, verdict: Verdict) -> float:
        """The smallest multiplier under which a `spike` verdict would have been `normal`."""
        assert verdict.baseline is not None
        return verdict.loss / verdict.baseline

    @abstractmethod
    def _baseline(self) -> float: ...

    def _compare(self, loss: float) -> Verdict:
        baseline = self._baseline()
        if baseline <= 0:
            return Verdict(keep=True, reason="baseline_not_positive", loss=loss, baseline=baseline)
        threshold = baseline * self._multiplier
        if loss > threshold:
            return Verdict(keep=False, reason="spike", loss=loss, baseline=baseline, threshold=threshold)
        return Verdict(keep=True, reason="normal", loss=loss, baseline=baseline, threshold=threshold)


def check_multiplier(multiplier: float) -> None:
    """Refuses a multiplier under which half of all normal values would be spikes, or none ever.

    Args:
        multiplier: How many baselines are still normal.

    Raises:
        UsageError: It is not a finite number above 1.
    """
    # Against the largest float, not infinity: an int beyond it is finite and yet no float.
    is_number = isinstance(multiplier, int | float) and not isinstance(multiplier, bool)
    if not is_number or not 1 < multiplier <= sys.float_info.max:
        raise UsageError(
            f"multiplier={spelled(multiplier)} makes no sense: use a finite number above 1, for example 2.0 "
            "(a loss of twice the baseline is still normal)."
        )
