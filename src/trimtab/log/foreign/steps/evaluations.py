"""Evaluations that a log holds beside its steps, as events.

Enters: losses on data that was not trained on, with their step or the entry of the log they stand in. Leaves: events of
kind "evaluation", as a run of ours records them: "loss" is the first of them. Invariant: their number is bounded, also
with other events among them, and what is cut is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.values import Event, json_number
from trimtab.watched import EVALUATION_EVENT

MAX_EVENTS: Final = 100_000
"""Events kept of one log; 0.5 kB each."""


class _Evaluation(NamedTuple):
    """One evaluation, before its step is known."""

    at: int
    losses: Mapping[str, float]
    time: float


class Evaluations:
    """Collects the evaluations of one log.

    Args:
        nouns: What they are, together with the events that `add_event` takes.
    """

    def __init__(self, nouns: str = "evaluations") -> None:
        self._nouns = nouns
        self._kept: list[_Evaluation | Event] = []
        self._num_left_out = 0

    def add(self, at: int, losses: Mapping[str, float], *, time: float = 0.0) -> None:
        """Takes one evaluation.

        Args:
            at: Its step; or, where `events` is given steps, the index of its entry in the log, counted from 0.
            losses: By name, at least one; not finite stays as it is.
            time: Seconds since the epoch; 0.0: the log does not say.
        """
        self._keep(_Evaluation(at, losses, time))

    def add_event(self, event: Event) -> None:
        """Takes an event of another kind, that stands among the evaluations."""
        self._keep(event)

    def events(self, step: NDArray[np.int64] | None = None) -> list[Event]:
        """The events, in the order taken; `step` (N,) is the optimizer step of each entry, where entries were given."""
        return [kept if isinstance(kept, Event) else _event(kept, step) for kept in self._kept]

    def places(self, place: NDArray[np.int64]) -> list[int]:
        """Where each of the events stands, where entries were given; `place` (N,) is that of each entry."""
        return [0 if isinstance(kept, Event) else int(place[kept.at]) for kept in self._kept]

    def notices(self) -> list[str]:
        """How many were cut."""
        if not self._num_left_out:
            return []
        return [f"{self._num_left_out} {self._nouns} after the first {MAX_EVENTS} were left out"]

    def _keep(self, event: _Evaluation | Event) -> None:
        if len(self._kept) == MAX_EVENTS:
            self._num_left_out += 1
        else:
            self._kept.append(event)


def _event(evaluation: _Evaluation, step: NDArray[np.int64] | None) -> Event:
    losses = {name: json_number(loss) for name, loss in evaluation.losses.items()}
    at = evaluation.at if step is None else int(step[evaluation.at])
    return Event(EVALUATION_EVENT, at, evaluation.time, {"loss": next(iter(losses.values())), **losses})
