"""The rules that a guard can be given while a run is going, and what it asks of one.

A name comes in, a class goes out. Invariant: whatever stands in `LIVE_RULES` is a `LiveRule`; the guard and its
settings know no rule but through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, Protocol

from trimtab.rules.mean import MeanRule
from trimtab.rules.robust import RobustRule
from trimtab.values import Verdict


class LiveRule(Protocol):
    """What a guard needs of its rule; `WindowedRule` brings all but the five names, `needed` and `settings`."""

    name: ClassVar[str]
    """What the user calls it, and its key in `LIVE_RULES`."""

    sensitivity: ClassVar[str]
    """Name of the setting that makes it more or less strict; also the setting's name in `GuardConfig`."""

    default_window_size: ClassVar[int]
    """Kept losses looked back at where the user names no number."""

    default_min_history: ClassVar[int]
    """Kept losses needed before anything is compared, likewise."""

    default_max_skips: ClassVar[int]
    """Finite losses skipped in a row before the guard doubts itself, likewise."""

    def __init__(self, sensitivity: float, /, *, window_size: int = ..., min_history: int = ...) -> None:
        """Refuses settings that make no sense with `UsageError`."""

    @property
    def window_size(self) -> int:
        """How many values it looks back at most."""

    @property
    def settings(self) -> dict[str, float]:
        """Every setting that decides, by the name of its argument."""

    @property
    def values(self) -> list[float]:
        """The absorbed values that it looks back at, oldest first."""

    def judge(self, x: float) -> Verdict:
        """Judges one value against what was absorbed so far; changes nothing."""

    def absorb(self, x: float) -> None:
        """Takes one value into the baseline; a value that is not finite is ignored."""

    def replace(self, values: Iterable[float]) -> None:
        """Makes `values` (oldest first) the whole baseline."""

    def reset(self) -> None:
        """Forgets every absorbed value."""

    def needed(self, verdict: Verdict) -> float:
        """The smallest `sensitivity` under which a `spike` verdict would have been `normal`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides, as plain JSON-ready types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict()` of the same rule with the same settings, else raises `UsageError`."""


LiveRuleName = Literal["mean", "robust"]

LIVE_RULES: Final[dict[LiveRuleName, type[LiveRule]]] = {"mean": MeanRule, "robust": RobustRule}
"""A new rule for guards is a file with its class, its name above, its entry here, and its comparison as tensor code
(`trimtab.torch.device_comparisons`)."""
