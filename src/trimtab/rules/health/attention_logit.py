"""The largest attention logit, of a model that offers it: large and growing.

Enters: `Vitals`. Leaves: a finding `attention_logit`. Kimi K2 (arXiv 2507.20534) clips query and key weights where a
head's largest logit exceeds 100, before which its logits had grown past 1,000 and training had become unstable.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedVitals
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.rules.window import Window, float32
from trimtab.watched import WatchFinding

# Against the median of the last five looks, one of which may be an outlier; two are enough to tell growth.
_WINDOW_SIZE: Final = 5
_MIN_HISTORY: Final = 2

# The largest of millions of logits moves by some percent from batch to batch.
_RISE: Final = 1.1

_BACK: Final = 0.9


class AttentionLogit:
    """Compares with a limit, and with the looks before."""

    name: ClassVar[str] = "attention_logit"

    def __init__(self, config: WatchConfig) -> None:
        self._limit = config.attention_logit_limit
        self._said = Said()
        self._window = Window(_WINDOW_SIZE)

    def judge(self, seen: ObservedVitals) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one look; a logit that is not finite is left out."""
        vitals = seen.vitals
        logit = math.nan if vitals.attention_logit is None else float32(vitals.attention_logit)
        if not math.isfinite(logit):
            return ()
        usual = self._window.median() if len(self._window) >= _MIN_HISTORY else None
        self._window.absorb(logit)
        if logit < _BACK * self._limit:
            self._said.end()
        if logit <= self._limit or usual is None or logit < _RISE * usual:
            return ()
        finding = WatchFinding(
            kind="attention_logit",
            severity="warning",
            step=vitals.step,
            text=f"the largest attention logit is {logit:.4g}, above {self._limit:g} and growing: {usual:.4g} in the "
            "looks before",
            figures={"attention_logit": logit, "before": usual, "limit": self._limit},
        )
        return self._said.say(finding)

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {"said": self._said.state_dict(), "window": self._window.state_dict()}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        said, window = read_entries(state, ("said", "window"), where="attention_logit")
        self._said.load_state_dict(said)
        self._window.load_state_dict(window)
