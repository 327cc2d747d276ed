"""`Snapshot`: what a training loop's state is between two windows, as numbers on the host.

Enters: a `Loop`. Leaves: its parameters, its optimizer's moments and step counts, learning rates, the scaler's scale.
A negative zero is written as zero: the two compare equal and train alike. Of a sharded parameter each rank holds its
part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trimtab.proof.loop import Loop


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """The state of a loop between two windows.

    Attributes:
        digest: The same where parameters, moments and step counts are the same, bit for bit.
        buffers: The same of the model's buffers.
        parameters: All parameters, flat, float64.
        moments: All moments, flat, float64.
        steps: Step counts, flat, float64.
        lrs: Learning rate of each group.
        scale: Of the gradient scaler; None without one.
        epsilon: Of the coarsest dtype among the parameters.
        is_sharded: Whether this rank holds a part only of some parameter.
    """

    digest: str
    buffers: str
    parameters: np.ndarray
    moments: np.ndarray
    steps: np.ndarray
    lrs: tuple[float, ...]
    scale: float | None
    epsilon: float
    is_sharded: bool

    @property
    def is_finite(self) -> bool:
        """Whether every parameter and moment is."""
        return bool(np.isfinite(self.parameters).all() and np.isfinite(self.moments).all())


def take_snapshot(loop: Loop) -> Snapshot:
    """What the loop's state is now; waits for the device."""
    parameters = dict(loop.model.named_parameters())
    known = set(map(id, parameters.values()))
    groups = loop.optimizer.param_groups
    for group in groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                parameters[f"of the optimizer alone: {len(parameters)}"] = parameter
    moments: dict[str, torch.Tensor] = {}
    steps: dict[str, torch.Tensor] = {}
    for name, parameter in parameters.items():
        state = loop.optimizer.state.get(parameter, {})
        for key, value in state.items():
            if not isinstance(value, torch.Tensor | int | float):
                continue
            held = steps if key == "step" else moments
            held[f"{name} {key}"] = torch.as_tensor(value)
    return Snapshot(
        digest=_digest({**parameters, **moments, **steps}),
        buffers=_digest(dict(loop.model.named_buffers())),
        parameters=_flat(parameters.values()),
        moments=_flat(moments.values()),
        steps=_flat(steps.values()),
        lrs=tuple(float(group["lr"]) for group in groups if "lr" in group),
        scale=float(loop.scaler.get_scale()) if loop.scaler is not None else None,
        epsilon=max((torch.finfo(p.dtype).eps for p in parameters.values() if p.is_floating_point()), default=0.0),
        is_sharded=any(hasattr(parameter, "to_local") for parameter in parameters.values()),
    )


def flat_gradients(parameters: Sequence[torch.Tensor]) -> np.ndarray | None:
    """All gradients, flat, float64, zeros where a parameter has none; None where no parameter has one."""
    if all(parameter.grad is None for parameter in parameters):
        return None
    return _flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    held: Any = tensor.detach()
    held = held.to_local() if hasattr(held, "to_local") else held
    whole: torch.Tensor = held.to_dense() if held.is_sparse else held
    return whole.cpu()


def _flat(tensors: Any) -> np.ndarray:
    flat = [_local(tensor).to(torch.float64).reshape(-1).numpy() for tensor in tensors]
    return np.concatenate(flat) if flat else np.zeros(0)


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        held = _local(tensor)
        found.update(f"{name} {held.dtype} {tuple(held.shape)} ".encode())
        if held.is_floating_point():
            held = (held + 0.0).to(torch.float64)  # exact, and in a dtype that numpy has
        found.update(held.contiguous().numpy().tobytes())
    return found.hexdigest()
