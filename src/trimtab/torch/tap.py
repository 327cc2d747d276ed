"""`LossTap`: the token losses of one micro-batch, from whichever place of a model computes its cross-entropy.

The cheap places are stand-ins for what only the loss passes through: a model's own loss function, a trainer's label
smoother. A model that calls cross-entropy somewhere in its forward is watched by a mode over every torch call. Which
of them it is, the first micro-batch shows: until then everything is watched, so that it is not missed.

`row_columns` gives the flat token losses the shape in which they meet their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from trimtab.torch.capture import CrossEntropyCapture, TokenLosses


class Place(Protocol):
    """A stand-in for what only the loss passes through.

    Attributes:
        active: Whether token losses are kept.
        calls: Those that were kept and not yet taken.
        was_called: Whether the loss ever passed through.
    """

    active: bool
    calls: list[TokenLosses]
    was_called: bool


class LossTap:
    """Runs a loss computation and hands out the token losses of its cross-entropies."""

    def __init__(self, *places: Place) -> None:
        """Watches `places`, and everything while none of them has been called.

        Args:
            places: Stand-ins that were put where the host calls its loss.
        """
        self._places = places
        self._watch_everything = True

    def run(self, compute: Callable[[], Any]) -> tuple[Any, list[TokenLosses]]:
        """Calls `compute`.

        Returns:
            Its result, and the token losses of each plain cross-entropy: those in the places if one of them was
            called, for what stands beside them is a further term (a router's); else all there were.
        """
        for place in self._places:
            place.active = True
        try:
            if not self._watch_everything:
                return compute(), self._taken_from_places()
            with CrossEntropyCapture() as capture:
                result = compute()
            self._watch_everything = not any(place.was_called for place in self._places)
            return result, capture.calls if self._watch_everything else self._taken_from_places()
        finally:
            for place in self._places:
                place.active = False
                place.calls = []

    def _taken_from_places(self) -> list[TokenLosses]:
        return [call for place in self._places for call in place.calls]


def row_columns(
    tokens: TokenLosses, rows: torch.Tensor, *, shifted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Shapes flat token losses so that they meet their rows.

    Args:
        tokens: N flat losses.
        rows: (B,) dataset rows, or (B, T) rows of the tokens.
        shifted: Whether the loss of a token is that of predicting the next one, which is the next token's row's.

    Returns:
        Losses, supervised and rows as `reduce_to_rows` takes them; None where N does not fit the rows.
    """
    num_entries = tokens.losses.numel()
    if rows.dim() == 2:
        if num_entries == rows[:, 1:].numel():  # the last token, which predicts nothing, is cut off
            rows = rows[:, 1:]
        elif num_entries != rows.numel():
            return None
        elif shifted:
            rows = torch.cat([rows[:, 1:], rows[:, -1:]], dim=1)
        return tokens.losses.view_as(rows), tokens.supervised.view_as(rows), rows
    num_rows = rows.numel()
    if num_rows == 0 or num_entries % num_rows:
        return None
    return tokens.losses.view(num_rows, -1), tokens.supervised.view(num_rows, -1), rows
