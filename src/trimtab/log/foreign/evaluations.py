"""Evaluations that a metric log holds beside its steps, as events.

Enters: losses on data that was not trained on, with the entry of the log they stand in. Leaves: events of kind
"evaluation", as a run of ours records them: "loss" is the first of them. Invariant: their number is bounded, and what
is cut is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.values import Event, json_number

MAX_EVENTS: Final = 100_000
"""Evaluations kept of one log; 0.5 kB each."""


class Evaluations:
    """Collects the evaluations of one log."""

    def __init__(self) -> None:
        self._losses: list[tuple[int, Mapping[str, float]]] = []
        self._num_left_out = 0

    def add(self, entry: int, losses: Mapping[str, float]) -> None:
        """Takes one evaluation.

        Args:
            entry: Index of its entry in the log, counted from 0.
            losses: By name, at least one; not finite stays as it is.
        """
        if len(self._losses) == MAX_EVENTS:
            self._num_left_out += 1
        else:
            self._losses.append((entry, losses))

    def events(self, step: NDArray[np.int64]) -> list[Event]:
        """The events, in the order taken; `step` (N,) is the optimizer step of each entry of the log."""
        events = []
        for entry, losses in self._losses:
            facts = {name: json_number(loss) for name, loss in losses.items()}
            loss = next(iter(facts.values()))
            # No log of these says when, as seconds of a clock that is known.
            events.append(Event("evaluation", int(step[entry]), 0.0, {"loss": loss, **facts}))
        return events

    def notices(self) -> list[str]:
        """How many were cut."""
        if not self._num_left_out:
            return []
        return [f"{self._num_left_out} evaluations after the first {MAX_EVENTS} were left out"]
