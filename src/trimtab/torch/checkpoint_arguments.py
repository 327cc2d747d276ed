"""What `Checkpointer.save` and `load` take: each is what it says, and of the kind that was saved.

Enters: what a caller gave. Leaves: nothing, or a `UsageError` that names the argument; and what the classes are called.
Invariant: nothing is changed, and no device is waited for.
"""

from __future__ import annotations

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.torch.lr_schedules import leaves, unwrapped


def check_model(model: object) -> None:
    """Refuses, with `UsageError`, what is no model."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}: pass the torch.nn.Module, wrapped or not.")


def check_optimizer(optimizer: object) -> None:
    """Refuses, with `UsageError`, what is no optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"optimizer is a {type(optimizer).__name__}: pass the torch.optim.Optimizer.")


def check_state_holder(value: object, *, name: str, method: str) -> None:
    """Refuses, with `UsageError`, what has no `state_dict`, or no `load_state_dict`; None is nothing to refuse."""
    if value is not None and not callable(getattr(value, method, None)):
        raise UsageError(
            f"{name} is a {type(value).__name__} without {method}(): pass the object itself, or leave it out."
        )


def kinds_of(optimizer: object, scheduler: object) -> dict[str, str | None]:
    """What the classes are called: state of one would be taken by another without a word."""
    # Accelerate's wrapper is an optimizer that holds one.
    inside = getattr(optimizer, "optimizer", None)
    optimizer = inside if isinstance(inside, torch.optim.Optimizer) else optimizer
    scheduler = unwrapped(scheduler)
    made_of = [type(leaf).__name__ for leaf in leaves(scheduler) if leaf is not scheduler]
    kind = None if scheduler is None else type(scheduler).__name__
    return {"optimizer": type(optimizer).__name__, "scheduler": f"{kind} of {', '.join(made_of)}" if made_of else kind}
