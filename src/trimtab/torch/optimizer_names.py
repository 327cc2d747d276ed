"""The state of an optimizer under the names of its parameters, and back under the numbers that torch gives them.

Enters: an optimizer and the model whose parameters it has. Leaves: its `state_dict()` by name, or its parameters by
number. Invariants: nothing is stepped to make state that is not there yet (`torch.distributed.checkpoint.state_dict`
does, and counts that as a step); the optimizer's own `state_dict` and `load_state_dict` are called, so its hooks run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trimtab.torch.module_names import bare_name, module_inside

PARAMS = "params"
"""What torch calls the parameters of a group, in `param_groups` and in a state_dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedState:
    """An optimizer's state_dict by name.

    Attributes:
        groups: For each parameter group, the names of its parameters, in order.
        options: For each parameter group, what else it says: lr, betas, ...
        state: What it keeps of each parameter that has stepped, by the parameter's name and its own key.
        rest: Further entries of its state_dict.
    """

    groups: tuple[tuple[str, ...], ...]
    options: tuple[Mapping[str, Any], ...]
    state: Mapping[str, Mapping[str, Any]]
    rest: Mapping[str, Any]

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        """What it keeps: the parameter's name, the optimizer's key, the value."""
        for name, values in self.state.items():
            for key, value in values.items():
                yield name, key, value


def parameters_by_name(optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[dict[str, torch.Tensor], ...]:
    """The parameters of each group under their names in the model, tied ones under their first.

    Args:
        optimizer: The optimizer.
        model: The model; under `fully_shard` it must show its shards (calling `state_dict()` sees to that).

    Returns:
        A dict for each group, in the order of the group. A parameter that the model does not have is called by its
        place, as `parameter 0 of group 1`.
    """
    names = {id(parameter): bare_name(name) for name, parameter in module_inside(model).named_parameters()}
    return tuple(
        {
            names.get(id(parameter), f"parameter {place} of group {number}"): parameter
            for place, parameter in enumerate(group[PARAMS])
        }
        for number, group in enumerate(optimizer.param_groups)
    )


def named_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> NamedState:
    """What the optimizer's state_dict holds, by name; tensors are the optimizer's own.

    Args:
        optimizer: The optimizer.
        model: As in `parameters_by_name`.
    """
    groups = tuple(tuple(group) for group in parameters_by_name(optimizer, model))
    saved = dict(optimizer.state_dict())
    saved_groups = saved.pop("param_groups")
    by_number = {
        number: name
        for names, group in zip(groups, saved_groups, strict=True)
        for name, number in zip(names, group[PARAMS], strict=True)
    }
    return NamedState(
        groups=groups,
        options=tuple({key: value for key, value in group.items() if key != PARAMS} for group in saved_groups),
        state={by_number[number]: values for number, values in saved.pop("state").items()},
        rest=saved,
    )


def numbered(named: NamedState, optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """A state_dict for `optimizer.load_state_dict`, whatever the order of the parameters inside a group is now.

    Args:
        named: By name; its groups hold the names that the optimizer's groups hold.
        optimizer: The optimizer.
        model: As in `parameters_by_name`.
    """
    numbers = optimizer.state_dict()["param_groups"]
    number_of = {
        name: number
        for parameters, group in zip(parameters_by_name(optimizer, model), numbers, strict=True)
        for name, number in zip(parameters, group[PARAMS], strict=True)
    }
    return {
        **named.rest,
        "state": {number_of[name]: dict(values) for name, values in named.state.items()},
        "param_groups": [
            {**options, PARAMS: list(group[PARAMS])} for options, group in zip(named.options, numbers, strict=True)
        ],
    }
