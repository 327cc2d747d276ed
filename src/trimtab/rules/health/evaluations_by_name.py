"""The evaluations of a run, by the name of their dataset.

Enters: names. Leaves: the `Evaluations` of each, and what all of them say. Invariant: no dataset's evaluations are
compared with another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trimtab.rules.health.evaluations import Evaluations
from trimtab.rules.health.observed import ObservedEvaluation
from trimtab.rules.said import Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain
from trimtab.watched import WatchFinding


class EvaluationsByName:
    """The evaluations of every dataset of a run, each judged by itself."""

    name: ClassVar[str] = "evaluations"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._of: dict[str, Evaluations] = {}

    def judge(self, seen: ObservedEvaluation) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one evaluation."""
        if seen.name not in self._of:
            self._of[seen.name] = Evaluations(self._config, name=seen.name)
        return self._of[seen.name].judge(seen)

    def figures(self) -> dict[str, dict[str, Any]]:
        """By the dataset's name: the best loss, its step, and how long the streak of worse ones is."""
        return {
            plain(name): {"best": one.best, "best_step": one.best_step, "num_worse": one.num_worse}
            for name, one in self._of.items()
        }

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return tuple(standing for one in self._of.values() for standing in one.standing())

    def state_dict(self) -> dict[str, Any]:
        """By name, plain types."""
        return {name: one.state_dict() for name, one in self._of.items()}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        if not isinstance(state, Mapping):
            raise damaged(f"evaluations are {spelled(state)}, not a dict")
        loaded = {}
        for name, entry in state.items():
            loaded[str(name)] = one = Evaluations(self._config, name=str(name))
            one.load_state_dict(entry)
        self._of = loaded
