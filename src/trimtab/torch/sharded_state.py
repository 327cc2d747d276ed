"""What a rank has of a model that lies on several ranks, and of its optimizer; `sharded_writing` writes it.

Enters: a model, sharded by `fully_shard` or otherwise made of DTensors, and its optimizer. Leaves: its state as it was
at the call. Invariants: nothing of the training is changed, and no state is made that is not there yet; no rank ever
holds the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.text import plain
from trimtab.torch.checkpoint_parts import Taker
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.optimizer_names import NamedState, named_state, parameters_by_name
from trimtab.torch.sharded_writing import MODEL, OPTIMIZER, Captured
from trimtab.torch.sharding import is_shard


def capture(model: nn.Module, optimizer: torch.optim.Optimizer, *, copy: bool) -> Captured:
    """Takes what this rank has of a model and its optimizer; no collective, nothing is stepped.

    Args:
        model: The model, in any wrapping.
        optimizer: Its optimizer, whose state may not be there yet.
        copy: Whether this rank's parts are copied to the CPU, so that training may go on; it waits for the device.

    Raises:
        CheckpointError: A tensor is of a kind that only a pickle could bring back, or it is not known which part of
            the whole it is.
        UsageError: Something else is.
    """
    taker = Taker(copies=True)  # what is no shard is small
    with torch.no_grad():
        # The model's own objects, for a state shows tied weights as two. First, as it brings the shards back.
        weights = module_inside(model).state_dict(keep_vars=True)
        named = named_state(optimizer, model)
        state: dict[str, dict[str, Any]] = {name: {} for name in named.state}
        captured = Captured(
            optimizer=NamedState(
                groups=named.groups,
                options=tuple(taker.take(options, where="a parameter group") for options in named.options),
                state=state,
                rest=taker.take(named.rest, where="the optimizer's state"),
            )
        )
        names: dict[int, str] = {}
        for full_name, value in weights.items():
            name = bare_name(full_name)
            if not isinstance(value, torch.Tensor):
                captured.extra[name] = taker.take(value, where=f"the model's {plain(name)}")
            elif id(value) in names:
                captured.aliases[name] = names[id(value)]
            else:
                names[id(value)] = name
                captured.add((MODEL, name), value, copy=copy)
        parameters = {name: value for group in parameters_by_name(optimizer, model) for name, value in group.items()}
        for name, key, value in named.entries():
            if not isinstance(value, torch.Tensor) or not (value.dim() or is_shard(value)):
                state[name][key] = taker.take(value, where=f"the optimizer's {plain(str(key))} of {plain(name)}")
                continue
            if is_shard(parameters[name]) and not is_shard(value):
                raise CheckpointError(
                    f"the optimizer keeps {plain(str(key))} of {plain(name)} as a plain tensor, and the parameter lies "
                    "in shards: whether each rank has a part or the whole cannot be known. Use an optimizer that keeps "
                    "it as a DTensor, as those of torch do (torch.zeros_like of the parameter)"
                )
            captured.add((OPTIMIZER, "state", name, str(key)), value, copy=copy)
    return captured
