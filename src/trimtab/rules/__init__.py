"""Pure decisions: one number comes in, a `Verdict` goes out; what enters the baseline is a second call.

Nothing here reads a clock, a file or a framework, so the same object judges live and offline. Arithmetic is part of a
rule: the judged value is rounded to the nearest float32, the window holds such values as float64, and every sum and
comparison is float64, so that host, device, live and offline agree verdict by verdict.
"""

from __future__ import annotations

from typing import Any, Protocol

from trimtab.values import Verdict


class Rule(Protocol):
    """What every rule offers; rules with a window add `window_size`, `min_history` and `replace`."""

    @property
    def name(self) -> str:
        """Name of the rule, as logs and findings spell it."""

    def judge(self, x: float) -> Verdict:
        """Judges one value against what was absorbed so far; changes nothing."""

    def absorb(self, x: float) -> None:
        """Takes one value into the baseline; a value that is not finite is ignored."""

    def reset(self) -> None:
        """Forgets every absorbed value."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides, as plain JSON-ready types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict()` of the same rule with the same settings, else raises `UsageError`."""


__all__ = ["Rule"]
