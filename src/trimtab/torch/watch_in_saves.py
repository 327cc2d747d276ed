"""What the watch of a run has to do with a save: what it calls unhealthy, and the memory that is about to be taken.

Enters: whatever is saved as `run`, a kit or a guard, too, and what somebody else wrote. Leaves: sentences and
a step, or a number of bytes. Invariant: nothing here keeps a checkpoint from being saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from trimtab.torch.naming import named_moments, named_weights
from trimtab.torch.placement import placed


class WatchWord(NamedTuple):
    """What a watch says of the model that is saved.

    Attributes:
        because: Why it is not healthy, a sentence each; none where there is no watch, or it is sound.
        since: Last step at which all of that was known to be well; None where nobody knows.
    """

    because: tuple[str, ...] = ()
    since: int | None = None


def word_of_watch(run: object) -> WatchWord:
    """What the watch of `run` says of the model.

    Taking the state of the run before makes its watch judge all that was measured up to then.
    """
    ask, ask_since = getattr(run, "unhealthy_because", None), getattr(run, "unhealthy_since", None)
    because = tuple(ask()) if callable(ask) else ()
    return WatchWord(because, ask_since() if because and callable(ask_since) else None)


def together(words: Iterable[WatchWord]) -> WatchWord:
    """What the watches of all ranks say: every sentence once, and the earliest step."""
    words = tuple(words)
    because = dict.fromkeys(sentence for word in words for sentence in word.because)
    return WatchWord(tuple(because), min((word.since for word in words if word.since is not None), default=None))


def look_at_memory(run: object, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Has the watch of `run` look at the host's memory before what is to be saved is copied into it.

    Args:
        run: What is saved as `run`.
        model: The model, or what it is wrapped in.
        optimizer: Its optimizer.
    """
    look = getattr(run, "before_save", None)
    if callable(look):
        look(payload_bytes(model, optimizer))


def payload_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Size of all weights and moments that this rank holds, in bytes; reads no value and waits for nothing."""
    weights = [tensor for _, tensor in named_weights(model)]
    moments = [tensor for _, _, tensor in named_moments(model, optimizer)]
    return sum(_size_bytes(tensor) for tensor in (*weights, *moments))


def _size_bytes(tensor: torch.Tensor) -> int:
    local = placed(tensor).local
    return local.numel() * local.element_size() if local.layout is torch.strided and not local.is_meta else 0
