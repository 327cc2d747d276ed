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
    grads = _gradients(parameters)
    if grads:
        torch._foreach_mul_(grads, factor)


def total_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """2-norm of all gradients together, 0-d, as `clip_grad_norm_` computes it; never waits."""
    return nn.utils.get_total_norm(_gradients(parameters))


def clip_gradients(parameters: Sequence[nn.Parameter], *, max_norm: float, norm: torch.Tensor) -> None:
    """Scales gradients down to `max_norm` where `norm`, their total norm, is above it; never waits."""
    if math.isinf(max_norm):
        return
    if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters):
        # torch's own clipping knows no sparse gradients; this is its formula.
        scale_gradients(parameters, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Takes every gradient away, so that an optimizer's step changes neither parameters nor moments nor its count."""
    for parameter in parameters:
        parameter.grad = None


def first_nonfinite(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """Name of the first parameter whose gradient is not finite; None if there is none. Waits for the device."""
    for name, parameter in named_parameters:
        if not all(bool(torch.isfinite(grad).all()) for grad in _gradients([parameter])):
            return name
    return None


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The gradients, of a sparse one the values that it holds: changing them in place changes the gradient."""
    grads = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            grads.append(parameter.grad._values())
        else:
            grads.append(parameter.grad)
    return grads


def current_lr(optimizer: torch.optim.Optimizer) -> float | torch.Tensor:
    """Learning rate of the first parameter group, as it is now: a scheduler changes a tensor in place."""
    lr: float | torch.Tensor = optimizer.param_groups[0]["lr"]
    return lr.detach().clone() if isinstance(lr, torch.Tensor) else lr


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
