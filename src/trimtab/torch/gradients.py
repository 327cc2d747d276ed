"""What happens to gradients between backward and the optimizer: scaled, measured, clipped, or taken away.

A step with zero gradients is no dropped step: momentum and weight decay would still move the weights. A dropped step
has no gradients at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from trimtab.values import StepReason


def scale_gradients(parameters: Iterable[nn.Parameter], factor: float | torch.Tensor) -> None:
    """Multiplies every gradient by `factor`, a number or a 0-d tensor on their device; never waits."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if grads:
        torch._foreach_mul_(grads, factor)


def total_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """2-norm of all gradients together, 0-d, as `clip_grad_norm_` computes it; never waits."""
    return nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def clip_gradients(parameters: Sequence[nn.Parameter], *, max_norm: float, norm: torch.Tensor) -> None:
    """Scales gradients down to `max_norm` where `norm`, their total norm, is above it; never waits."""
    if not math.isinf(max_norm):
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Takes every gradient away, so that an optimizer's step changes neither parameters nor moments nor its count."""
    for parameter in parameters:
        parameter.grad = None


def first_nonfinite(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """Name of the first parameter whose gradient is not finite; None if there is none. Waits for the device."""
    for name, parameter in named_parameters:
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return name
    return None


def take_step(
    optimizer: torch.optim.Optimizer, *, scaler: torch.amp.GradScaler | None, scale_before: float | None
) -> StepReason:
    """Steps the optimizer, through the scaler where there is one; its own verdict on overflow waits for the device."""
    if scaler is None:
        optimizer.step()
        return "stepped"
    scaler.step(optimizer)
    scaler.update()
    assert scale_before is not None, "read before unscaling"
    return "scaler_overflow" if scaler.get_scale() < scale_before else "stepped"
