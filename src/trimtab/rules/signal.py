"""What the rules of a watch are put together of: signals, and states by name.

Enters: nothing. Leaves: two protocols, and how the states of several parts are one. Invariant: a signal that is new
begins without a history where a state is older than it; one that is gone is passed over; what is damaged is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from trimtab.rules.said import Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged
from trimtab.watched import WatchFinding

Seen_contra = TypeVar("Seen_contra", contravariant=True)


class Part(Protocol):
    """What has a state of its own."""

    @property
    def name(self) -> str:
        """Its name in the state of the whole."""

    def state_dict(self) -> Any:
        """What it remembers, as plain JSON-ready values."""

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""


class Signal(Part, Protocol[Seen_contra]):
    """One thing that a watch looks at."""

    def judge(self, seen: Seen_contra) -> tuple[WatchFinding, ...]:
        """Judges and absorbs; gives back what is news. Raises nothing, whatever the numbers are."""

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""


def states_of(parts: Iterable[Part]) -> dict[str, Any]:
    """The states of all parts, by name."""
    return {part.name: part.state_dict() for part in parts}


def load_states(parts: Iterable[Part], states: object) -> None:
    """Hands each part its state.

    A part that the states do not hold stays as it is: it is newer than they are. A state that no part is of was another
    version's, and is passed over without a word: what it knew is judged by nothing here.

    Raises:
        UsageError: Something is no state; some of the parts have changed then.
    """
    if not isinstance(states, Mapping):
        raise damaged(f"the states are {spelled(states)}, not a dict")
    for part in parts:
        if part.name in states:
            part.load_state_dict(states[part.name])
