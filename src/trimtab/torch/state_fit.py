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
from trimtab.text import plain
from trimtab.torch.optimizer_names import NamedState, parameters_by_name

_MOST_NAMED = 5
"""How many names or differences one message holds."""


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """The shape of each tensor of a model's state; None for what is no tensor."""
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else None for name, value in state.items()}


def refuse_unlike(
    here: Mapping[str, tuple[int, ...] | None], saved: Mapping[str, tuple[int, ...] | None], *, where: str
) -> None:
    """Refuses names or shapes of a model that are not those of the checkpoint; None: no tensor."""
    missing, unexpected = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
    found = []
    if missing:
        found.append(f"it lacks {_listed(missing)}")
    if unexpected:
        found.append(f"the model has no {_listed(unexpected)}")
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
            found = f"its parameter group {number} differs in {_listed(sorted(names ^ saved_names))}"
            break
    raise CheckpointError(
        f"{where}: it is not of this optimizer: {found}. Build the groups as the run that saved it did, or pass "
        "optimizer=None for the weights alone"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return plain(", ".join(names[:_MOST_NAMED])) + more


def _spelled(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"of shape {shape}"
