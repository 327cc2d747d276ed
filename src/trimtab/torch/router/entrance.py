"""What goes into a model: how many tokens, and which of them are real.

Enters: the arguments of one call of the model. Leaves: `Entered`. Invariant: nothing is waited for, and what cannot be
told is None, never guessed.

Shapes: B sequences, T tokens, H hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn

_TOKENS: Final = ("input_ids", "inputs_embeds")
_MASK: Final = "attention_mask"


class Entered(NamedTuple):
    """The tokens of one call.

    Attributes:
        num_tokens: B * T, padding included; None where no argument says it.
        mask: (B * T,) bool, which are real; None: all, or nobody knows.
        unread_mask: What an attention mask is that is none of (B, T); None: there is no such one.
    """

    num_tokens: int | None
    mask: torch.Tensor | None
    unread_mask: str | None


def argument_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the arguments that a model takes by place."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in by_place)


def entered(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entered:
    """Reads one call.

    Args:
        names: As `argument_names` gives them.
        args: By place. Without input_ids or inputs_embeds the first tensor says the tokens: integers (B, T), or
            numbers (B, T, H) or (T, H).
        kwargs: By name.
    """
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    places = next((given[name].shape[:2] for name in _TOKENS if isinstance(given.get(name), torch.Tensor)), None)
    if places is None:
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        places = None if first is None else _places(first)
    mask = given.get(_MASK)
    if mask is None or places is None:
        return Entered(None if places is None else places.numel(), None, None)
    if not isinstance(mask, torch.Tensor) or mask.shape != places or mask.is_floating_point():
        return Entered(None, None, _kind_of(mask))
    return Entered(places.numel(), mask.detach().flatten() != 0, None)


def _kind_of(mask: Any) -> str:
    """What a mask is, the same of each micro-batch."""
    if not isinstance(mask, torch.Tensor):
        return f"a {type(mask).__name__}"
    if mask.dim() != 2 or mask.is_floating_point():
        return f"a tensor of {mask.dim()} dimensions and {mask.dtype}"
    return "of other tokens than went in"


def _places(tensor: torch.Tensor) -> torch.Size | None:
    if not tensor.is_floating_point():
        return tensor.shape if tensor.dim() in (1, 2) else None
    return tensor.shape[:-1] if tensor.dim() in (2, 3) else None
