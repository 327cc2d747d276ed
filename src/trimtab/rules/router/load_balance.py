"""The load balance of each layer: one that rises above 2, or is above 4, where 1 is balance whatever k is.

It tells on a run early: 2.1, on the way to 10.8, was the first symptom of the 14-layer run that died. Per layer,
because layers that fail in opposite ways pool to 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from trimtab.rules.router.figures import finite
from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.rules.router.trend import Trend
from trimtab.rules.router.z_course import chooses
from trimtab.rules.state import read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import FindingKind, RouterReport, WatchFinding

RISE: Final = 1.25
"""Factor over a window: a rise of a tenth a report, several times the noise of a mean over thousands of tokens."""

NUM_LEVELS: Final = 2
"""Windows of 4 and of 16 reports: slower than over 800 steps no layer is known to have gone out of balance."""

BACK: Final = 0.9
"""Times `load_balance_rising_above`: a layer below it is back."""

_SMALLEST: Final = 1e-12


class LoadBalanceRising(Judgement):
    """Judges the load balance of each layer by value and course.

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "load_balance_rising"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._courses: PerLayer[Trend] = PerLayer()

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of layers out of balance."""
        for layer in seen.report.layers:
            balance = finite(layer.load_balance)
            if balance is None or balance < 0 or not chooses(layer):
                continue
            course = self._courses.get(layer.name) or Trend(num_levels=NUM_LEVELS)
            before = course.newest
            course.absorb(max(_SMALLEST, balance))
            self._courses.put(layer.name, course)
            rises = (
                course.rise(RISE, may_accelerate=True) is not None and balance > self._config.load_balance_rising_above
            )
            if rises or balance > self._config.load_balance_high:
                figures = {"load_balance": balance, "before": before, "rises": rises}
                yield Sign(layer=layer.name, topic="balance", figures=figures)
            elif balance < BACK * self._config.load_balance_rising_above:
                yield Sign(layer=layer.name, topic="balance", is_over=True)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, with the figure of the layer that is furthest from balance in the sentence."""
        worst = max(signs, key=lambda sign: sign.figures["load_balance"])
        others = also_in([worst, *(sign for sign in signs if sign is not worst)])
        balance = number(worst.figures["load_balance"])
        text = f"load balance in {layers_named([worst])} is {balance}, divided by k (1 at balance)"
        if worst.figures["before"] is not None:
            text += f", after {number(worst.figures['before'])} in the report before"
        return self.finding(report, signs, f"{text}{', and rises' if worst.figures['rises'] else ''}{others}")

    def state_dict(self) -> dict[str, Any]:
        """The course of each layer."""
        return {"courses": self._courses.state_dict(Trend.state_dict)}

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        (courses,) = read_entries(state, ("courses",), where=self.kind)
        self._courses.load_state_dict(courses, lambda found: Trend.from_state(found, num_levels=NUM_LEVELS))
