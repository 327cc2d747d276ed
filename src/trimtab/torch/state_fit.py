"""Whether a checkpoint is of this model and this optimizer: names, shapes, parameter groups.

Enters: what is here and what was saved. Leaves: nothing, or a `CheckpointError` that names what differs. Invariant: it
is asked before anything is read or changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.text import listed, plain
from trimtab.torch.optimizer_names import NamedState, parameters_by_name
from trimtab.torch.sharded_index import SavedTensor

_EXTRA_STATE = "_extra_state"
"""What torch calls what a module's `get_extra_state` gives."""

_MOST_NAMED = 5
"""How many names or differences one message holds."""


def is_weight(name: str, value: object) -> bool:
    """Whether an entry of a model's state is a tensor that is copied into one of the model's.

    A module may have a tensor for its extra state, of any shape at any time; it takes that back by itself.
    """
    return isinstance(value, torch.Tensor | SavedTensor) and name.rpartition(".")[2] != _EXTRA_STATE


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """The shape of each weight of a model's state; None for what is none."""
    return {name: tuple(value.shape) if is_weight(name, value) else None for name, value in state.items()}


def refuse_unlike(
    here: Mapping[str, tuple[int, ...] | None], saved: Mapping[str, tuple[int, ...] | None], *, where: str
) -> None:
    """Refuses names or shapes of a model that are not those of the checkpoint; None: no tensor."""
    missing, unexpected = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
    found = []
    if missing:
        found.append(f"it lacks {listed(map(plain, missing), most=_MOST_NAMED)}")
    if unexpected:
        found.append(f"the model has no {listed(map(plain, unexpected), most=_MOST_NAMED)}")
    found.extend(
        f"{plain(name)} is {_spelled(saved[name])} there and {_spelled(here[name])} in the model"
        for name in sorted(here.keys() & saved.keys())
        if here[name] != saved[name]
    )
    if found:
        raise CheckpointError(
            f"{where}: it is not of this model: {'; '.join(found[:_MOST_NAMED])}. Build the model as the run that "
            "saved it did, or pick a checkpoint of this one"
        )


def refuse_unlike_groups(saved: NamedState, optimizer: torch.optim.Optimizer, model: nn.Module, *, where: str) -> None:
    """Refuses, with `CheckpointError`, parameter groups that do not hold the parameters that were saved in them."""
    here = [set(group) for group in parameters_by_name(optimizer, model)]
    there = [set(group) for group in saved.groups]
    if here == there and saved.state.keys() <= set().union(*there):
        return
    found = f"it has {len(there)} parameter groups and this optimizer {len(here)}"
    for number, (names, saved_names) in enumerate(zip(here, there, strict=False)):
        if len(here) == len(there) and names != saved_names:
            differing = map(plain, sorted(names ^ saved_names))
            found = f"its parameter group {number} differs in {listed(differing, most=_MOST_NAMED)}"
            break
    raise CheckpointError(
        f"{where}: it is not of this optimizer: {found}. Build the groups as the run that saved it did, or pass "
        "optimizer=None for the weights alone"
    )


def _spelled(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"of shape {shape}"
