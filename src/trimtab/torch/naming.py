"""Weights and moments under their names: those of the module inside, whatever it is wrapped in.

Enters: a model, wrapped or not, and its optimizer. Leaves: the tensors themselves, no copies. Invariant: one model has
the same names in every wrapping, so that what one has saved any other loads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.optimizer_names import parameters_by_name


def weights_of(model: nn.Module) -> OrderedDict[str, Any]:
    """The state of the module inside, under its own names."""
    state = module_inside(model).state_dict()
    if all(bare_name(name) == name for name in state):
        return state if isinstance(state, OrderedDict) else OrderedDict(state)
    return OrderedDict((bare_name(name), value) for name, value in state.items())


def named_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the model's state with its name; one that has two names comes under the first."""
    seen = set()
    for name, value in weights_of(model).items():
        if not isinstance(value, torch.Tensor):
            continue
        # A state holds another object for each name. Shards and what is sparse have no address of their own.
        is_plain = type(value.detach()) is torch.Tensor and value.layout is torch.strided and not value.is_meta
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype) if is_plain and value.numel() else name
        if place not in seen:
            seen.add(place)
            yield name, value


def named_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Every tensor of the optimizer's state: the parameter's name, what it is called there, and the tensor."""
    for parameters in parameters_by_name(optimizer, module_inside(model)):
        for name, parameter in parameters.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield name, str(key), value
