"""Names of a model's tensors that stay the same whatever the model is wrapped in.

Enters: a model, and the names that its state_dict has. Leaves: the module inside, and the names that its tensors had
before DistributedDataParallel, DataParallel or torch.compile put theirs before it. Invariant: a checkpoint of a wrapped
model loads into the bare one, and the reverse.
"""

from __future__ import annotations

from typing import Final

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_COMPILED: Final = "_orig_mod"
"""Under which attribute `torch.compile(module)` keeps the module, also where a module inside of another is compiled."""


def module_inside(model: nn.Module) -> nn.Module:
    """The module inside of its wrappers, or the model itself."""
    while True:
        inside = model.module if isinstance(model, DistributedDataParallel | DataParallel) else None
        if inside is None:
            inside = getattr(model, _COMPILED, None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def bare_name(name: str) -> str:
    """A name of a tensor without what compiled modules inside of the model put into it.

    Example:
        >>> bare_name("layers.0._orig_mod.weight")
        'layers.0.weight'
    """
    if _COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _COMPILED)
