"""Skips in a row, and skips among many: when a guard should doubt itself.

A guard that skips for ever is worse than none: skipping stops the learning that would bring the loss down again. These
two counters see verdicts and say when it is time; what to do about it is the guard's business.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.rules.window import read_losses

RATE_WINDOW = 1_000
"""Verdicts over which the rate of skips is taken."""

RATE_PERCENT = 1
"""Skips in percent that a well-set guard stays below: real data spikes are rarer, 34 of 20,344 in a 1.5B run."""


class SkipStreak:
    """Finite skips in a row, with the losses that were skipped, and losses in a row that were not finite.

    A loss that is not finite neither counts as a finite skip nor ends a row of them. A kept loss ends both rows, a
    finite skip ends the row of losses that are not finite.

    Args:
        num_losses: How many of the skipped losses are held, the most recent ones.
    """

    def __init__(self, *, num_losses: int) -> None:
        self.num_finite = 0
        self.num_nonfinite = 0
        self.losses: deque[float] = deque(maxlen=num_losses)

    def skip_finite(self, loss: float) -> None:
        """Counts a finite loss that was skipped."""
        self.num_nonfinite = 0
        self.num_finite += 1
        self.losses.append(loss)

    def skip_nonfinite(self) -> None:
        """Counts a loss that was skipped because it is not finite."""
        self.num_nonfinite += 1

    def end(self) -> None:
        """A loss was kept: nothing is in a row any more."""
        self.num_finite = self.num_nonfinite = 0
        self.losses.clear()

    def replace(self, losses: Iterable[float], *, num_finite: int) -> None:
        """Goes on from a row of finite skips, and from no loss in a row that was not finite.

        Args:
            losses: The newest losses of the row, oldest first.
            num_finite: How many were skipped in that row.
        """
        self.num_finite, self.num_nonfinite = num_finite, 0
        self.losses.clear()
        self.losses.extend(losses)

    def state_dict(self) -> dict[str, Any]:
        """Both counts and the skipped losses, oldest first."""
        return {"num_finite": self.num_finite, "num_nonfinite": self.num_nonfinite, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        finite, nonfinite, kept = read_entries(state, ("num_finite", "num_nonfinite", "losses"), where="streak")
        num_finite = read_count(finite, name="streak's num_finite")
        num_nonfinite = read_count(nonfinite, name="streak's num_nonfinite")
        losses = read_losses(kept, where="streak")
        assert self.losses.maxlen is not None
        if len(losses) != min(num_finite, self.losses.maxlen):
            raise damaged(f"streak holds {len(losses)} losses of {num_finite} that were skipped in a row")
        self.replace(losses, num_finite=num_finite)
        self.num_nonfinite = num_nonfinite


class SkipRate:
    """Whether more than 1 % of the last 1,000 verdicts were finite skips.

    Only the newest eleven skips are held, with the setting that each would have needed to be normal: fewer than eleven
    can not exceed 1 %, and the question is asked at every skip.
    """

    def __init__(self) -> None:
        self._skips: deque[tuple[int, float]] = deque(maxlen=RATE_WINDOW * RATE_PERCENT // 100 + 1)

    def add(self, needed: float, *, place: int) -> bool:
        """Notes one finite skip and says whether the rate is now too high.

        Args:
            needed: The smallest setting under which it would have been normal.
            place: Which verdict it was, counted from 1.
        """
        self._skips.append((place, needed))
        return len(self._skips) == self._skips.maxlen and place - self._skips[0][0] < RATE_WINDOW

    @property
    def num_skips(self) -> int:
        """How many skips are held."""
        return len(self._skips)

    @property
    def last_place(self) -> int:
        """Which verdict the newest held skip was; 0 if none is held."""
        return self._skips[-1][0] if self._skips else 0

    def setting_within(self, num_verdicts: int) -> float:
        """The smallest setting under which at most 1 % of `num_verdicts` verdicts would have been these skips."""
        num_allowed = num_verdicts * RATE_PERCENT // 100
        return sorted((needed for _, needed in self._skips), reverse=True)[num_allowed]

    def state_dict(self) -> dict[str, Any]:
        """The held skips, oldest first, each as its place and the setting it needed."""
        return {"skips": [list(skip) for skip in self._skips]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        (entries,) = read_entries(state, ("skips",), where="rate")
        assert self._skips.maxlen is not None
        if not isinstance(entries, list) or len(entries) > self._skips.maxlen:
            raise damaged(f"rate holds {spelled(entries)}, not a list of {self._skips.maxlen} skips at most")
        skips = [_read_skip(entry) for entry in entries]
        places = [place for place, _ in skips]
        if places != sorted(set(places)):
            raise damaged(f"rate holds skips at {places}, which do not ascend")
        self._skips.clear()
        self._skips.extend(skips)


def _read_skip(entry: Any) -> tuple[int, float]:
    """One saved skip: its place, and the setting it needed, which is positive."""
    if not isinstance(entry, list | tuple) or len(entry) != 2 or not is_finite(entry[1]) or not entry[1] > 0:
        raise damaged(f"rate holds {spelled(entry)}, not a place and the setting that was needed")
    return read_count(entry[0], name="rate's place"), float(entry[1])


def round_up(x: float, *, digits: int) -> float:
    """The smallest number of `digits` significant digits that is not below the positive `x`."""
    unit = 10.0 ** (math.floor(math.log10(x)) - digits + 1)
    # Through text: 235 * 0.01 is 2.35 only there.
    return float(f"{math.ceil(x / unit) * unit:.{digits}g}")
