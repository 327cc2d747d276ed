"""What a judgement remembers of each layer, bounded: a later layer may come, another go, a log may name any.

Invariant: at most `MAX_LAYERS` names are held, those seen last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged
from trimtab.watched_json import MAX_LAYERS

MODEL: Final = ""
"""Stands for the name of a layer where a figure is of the whole model."""

_Value = TypeVar("_Value")


class PerLayer(Generic[_Value]):
    """One value a layer, by its name."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, layer: str) -> _Value | None:
        """The layer's value."""
        return self._values.get(layer)

    def put(self, layer: str, value: _Value) -> None:
        """Remembers the layer's value; the layer that was not seen for longest leaves where there are too many."""
        self._values.pop(layer, None)
        self._values[layer] = value
        if len(self._values) > MAX_LAYERS:
            del self._values[next(iter(self._values))]

    def forget(self, layer: str) -> None:
        """Forgets the layer, known or not."""
        self._values.pop(layer, None)

    def clear(self) -> None:
        """Forgets all layers."""
        self._values.clear()

    def state_dict(self, write: Callable[[_Value], Any]) -> dict[str, Any]:
        """The values by layer, each as `write` spells it."""
        return {layer: write(value) for layer, value in self._values.items()}

    def load_state_dict(self, state: Any, read: Callable[[Any], _Value]) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        if (
            not isinstance(state, Mapping)
            or len(state) > MAX_LAYERS
            or not all(isinstance(name, str) for name in state)
        ):
            raise damaged(f"the layers are {spelled(state)}, not up to {MAX_LAYERS} names")
        self._values = {layer: read(value) for layer, value in state.items()}
