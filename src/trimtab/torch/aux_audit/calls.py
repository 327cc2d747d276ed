"""Of routers that are called more than once within a loss: what of their calls the terms are made of.

Enters: logits of each router, call by call. Leaves: the logits of L layers, by one reading. Invariant: the readings are
tried in this order, and one is taken where the gradient fits it; which of them a loop has is never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import torch

Reading = Literal["first", "last", "tokens", "layers"]
"""The first call alone; the last; all calls as parts of a batch; each call as a layer of its own, of a shared
router."""

READINGS: Final[tuple[Reading, ...]] = get_args(Reading)

IN_WORDS: Final[dict[Reading, str]] = {
    "first": "the first call of each",
    "last": "the last call of each",
    "tokens": "all calls of each, put together as parts of one batch",
    "layers": "all calls, each a layer of its own",
}


def layers_read(heard: Mapping[str, Sequence[torch.Tensor]], *, reading: Reading) -> dict[str, torch.Tensor]:
    """Logits by layer.

    Args:
        heard: By router, (..., E) of each call.
        reading: What of them.
    """
    if reading == "layers":
        return {
            name if place == 0 else f"{name}, call {place + 1}": logits
            for name, calls in heard.items()
            for place, logits in enumerate(calls)
        }
    if reading == "tokens":
        return {name: _joined(calls) for name, calls in heard.items()}
    return {name: calls[0 if reading == "first" else -1] for name, calls in heard.items()}


def _joined(calls: Sequence[torch.Tensor]) -> torch.Tensor:
    if len({call.shape[1:] for call in calls}) == 1:
        return torch.cat(list(calls))
    return torch.cat([call.flatten(0, -2) for call in calls])  # sequences of other lengths
