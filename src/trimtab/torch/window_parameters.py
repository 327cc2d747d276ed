"""The parameters that an engine hands over with a window, or an error that says what was handed over instead.

Enters: what a user passes for `parameters`. Leaves: each parameter once, in order. Invariant: where something counts,
one of them has a gradient, so that whoever scales or drops gradients does not work on none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import nn

from trimtab.errors import UsageError

_INSTEAD: Final = (
    "hand over the parameters whose gradients the window has left, anew each time: "
    "finish_window(model.parameters()), or a list of them."
)


def window_parameters(parameters: Iterable[nn.Parameter], *, counts: Callable[[], bool]) -> list[nn.Parameter]:
    """Each parameter once.

    Args:
        parameters: What was handed over.
        counts: Whether anything in the window takes part in the update; asked where none has a gradient.

    Raises:
        UsageError: It is no iterable of parameters, or none has a gradient in a window in which something counts.
    """
    if isinstance(parameters, (torch.Tensor, Mapping, nn.Module, str)) or not isinstance(parameters, Iterable):
        raise UsageError(f"finish_window was given a {type(parameters).__name__} for parameters: {_INSTEAD}")
    found = list({id(parameter): parameter for parameter in parameters}.values())
    other = next((parameter for parameter in found if not isinstance(parameter, torch.Tensor)), None)
    if other is not None:
        raise UsageError(
            f"finish_window was given an iterable of {type(other).__name__}, as named_parameters() and "
            f"optimizer.param_groups are, and not of parameters: {_INSTEAD}"
        )
    if all(parameter.grad is None for parameter in found) and counts():
        used_up = ", as of an iterator that was used before" if not found else ""
        raise UsageError(
            f"finish_window was given {len(found)} parameters{used_up}, 0 of them with a gradient, and something in "
            "the window counts: its gradients would be neither scaled nor checked. After the last backward, before "
            f"zero_grad, {_INSTEAD}"
        )
    return found
