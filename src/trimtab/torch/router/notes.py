"""What a watch could not measure, and why: one sentence a cause, whatever the number of layers.

Enters: causes, with the layers that they are about. Leaves: sentences. Invariant: a cause that lasts is the same
sentence in each report, so whoever reads them can say it once; so no number of a single call stands in one.
"""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.text import listed, plain


class Notes:
    """Causes since they were last taken."""

    def __init__(self) -> None:
        """There is none."""
        self._layers: dict[str, dict[str, None]] = {}

    def add(self, why: str, *, layer: str | None = None) -> None:
        """Adds a cause.

        Args:
            why: A sentence without its full stop; of a layer what is said of "it".
            layer: The layer's name, as it is; None: it is about the model.
        """
        layers = self._layers.setdefault(why, {})
        if layer is not None:
            layers[layer] = None

    def taken(self) -> list[str]:
        """The sentences, without full stops; there is none then."""
        given = [about(layers, why) if layers else why for why, layers in self._layers.items()]
        self._layers = {}
        return given


def about(layers: Iterable[str], why: str) -> str:
    """A sentence about some layers."""
    return f"{listed([plain(layer) for layer in layers], most=3)}: {why}"
