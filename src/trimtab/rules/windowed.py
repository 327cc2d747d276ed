"""What every rule with a window shares: finite first, warm-up, what enters, state.

A value comes in; `judge` settles the cases that need no baseline and leaves the comparison to the rule. Invariant: the
window never holds a value that is not finite (one NaN would make every later comparison False, one infinity the mean).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from trimtab.errors import UsageError
from trimtab.rules.finite import FiniteRule
from trimtab.rules.scalar import whole_number
from trimtab.rules.state import STATE_VERSION, check_state, read_entries
from trimtab.rules.window import Window, float32
from trimtab.values import Verdict

MAX_SIZE = 2**31 - 1
"""Largest window, and largest number of anything that is counted against one."""

_FINITE = FiniteRule()


class WindowedRule(ABC):
    """A rule that compares a value with the last `window_size` absorbed ones.

    Args:
        window_size: How many values the baseline looks back at most, 1 or more.
        min_history: How many values must lie behind before anything is compared, 1 to `window_size`.

    Raises:
        UsageError: The two make no sense, alone or together.
    """

    name: ClassVar[str]

    def __init__(self, *, window_size: int, min_history: int) -> None:
        size, self._min_history = read_history(window_size, min_history=min_history)
        self._window = Window(size)

    @property
    def window_size(self) -> int:
        """How many values the baseline looks back at most."""
        return self._window.size

    @property
    def values(self) -> list[float]:
        """The absorbed values that the baseline looks back at, oldest first."""
        return self._window.values()

    @property
    def min_history(self) -> int:
        """How many values must lie behind before anything is compared."""
        return self._min_history

    @property
    @abstractmethod
    def settings(self) -> dict[str, float]:
        """Every setting that decides, by the name of its argument."""

    @abstractmethod
    def _compare(self, loss: float) -> Verdict:
        """Verdict on a finite float32 value with at least `min_history` values behind."""

    def judge(self, x: float) -> Verdict:
        """Judges one value against the window; changes nothing.

        Args:
            x: The value; rounded to float32 here.

        Returns:
            `nonfinite` (not kept, in warm-up too), `warmup` (kept), or what the comparison says.
        """
        finite = _FINITE.judge(x)
        if not finite.keep:
            return finite
        if len(self._window) < self._min_history:
            return Verdict(keep=True, reason="warmup", loss=finite.loss)
        return self._compare(finite.loss)

    def absorb(self, x: float) -> None:
        """Takes one value into the window; a value that is not finite as float32 is ignored."""
        loss = float32(x)
        if math.isfinite(loss):
            self._window.absorb(loss)

    def replace(self, values: Iterable[float]) -> None:
        """Makes the most recent `window_size` finite ones of `values` (oldest first) the whole window."""
        self._window.replace(x for x in map(float32, values) if math.isfinite(x))

    def reset(self) -> None:
        """Forgets every value: the next ones are warm-up again."""
        self._window.clear()

    def state_dict(self) -> dict[str, Any]:
        """Version, name, settings and window as plain types; JSON-ready, never a number that is not finite."""
        return {
            "version": STATE_VERSION,
            "rule": self.name,
            "settings": self.settings,
            "window": self._window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the window of a `state_dict()`.

        Args:
            state: What `state_dict()` of the same rule with the same settings gave.

        Raises:
            UsageError: It is of another version or rule, was saved under other settings, or is damaged; nothing has
                changed then.
        """
        check_state(state, expected={"version": STATE_VERSION, "rule": self.name, "settings": self.settings})
        (window,) = read_entries(state, ("window",), where="the rule")
        self._window.load_state_dict(window)


def read_history(window_size: int, *, min_history: int) -> tuple[int, int]:
    """Both settings of a window as plain ints; refuses one that could never be judged by.

    Args:
        window_size: Values looked back at most.
        min_history: Values needed before anything is compared.

    Returns:
        `window_size` and `min_history`.

    Raises:
        UsageError: One is not a whole number of 1 or more, or `min_history` exceeds `window_size`.
    """
    expected = f"a whole number from 1 to {MAX_SIZE}."
    size = whole_number(window_size, name="window_size", least=1, most=MAX_SIZE, expected=expected)
    num_needed = whole_number(min_history, name="min_history", least=1, most=MAX_SIZE, expected=expected)
    if size < num_needed:
        raise UsageError(
            f"window_size={size} is smaller than min_history={num_needed}: the window could never hold enough "
            f"values to judge by. Use window_size={num_needed} or more, or min_history={size} or less."
        )
    return size, num_needed
