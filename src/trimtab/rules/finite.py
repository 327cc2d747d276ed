"""The rule `finite`: only a value that is not finite is out of line.

A value comes in, whether float32 can hold it goes out. There is no window and no state that decides. Every rule with a
window asks this one first.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from trimtab.rules.state import STATE_VERSION, check_state
from trimtab.rules.window import float32
from trimtab.values import Verdict


class FiniteRule:
    """Keeps every finite value, whatever its size."""

    name: ClassVar[str] = "finite"

    def judge(self, x: float) -> Verdict:
        """`nonfinite` (not kept) or `normal`; a value beyond the range of float32 is not finite."""
        loss = float32(x)
        if math.isfinite(loss):
            return Verdict(keep=True, reason="normal", loss=loss)
        return Verdict(keep=False, reason="nonfinite", loss=loss)

    def absorb(self, x: float) -> None:
        """Does nothing: there is no baseline."""

    def reset(self) -> None:
        """Does nothing: there is no history."""

    def state_dict(self) -> dict[str, Any]:
        """Version and name."""
        return {"version": STATE_VERSION, "rule": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a state of another rule or version with `UsageError`; there is nothing to take over."""
        check_state(state, expected={"version": STATE_VERSION, "rule": self.name})
