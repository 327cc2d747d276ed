"""What sets the size of a step beside its gradients, as it is at the moment: learning rate, and a scaler's scale.

Enters: an optimizer, or a gradient scaler. Leaves: a number, or a copy on the device that later steps do not change.
Invariant: nothing here waits for a device.
"""

from __future__ import annotations

import torch


def current_lr(optimizer: torch.optim.Optimizer) -> float | torch.Tensor:
    """Learning rate of the first parameter group, as it is now: a scheduler changes a tensor in place."""
    lr: float | torch.Tensor = optimizer.param_groups[0]["lr"]
    return lr.detach().clone() if isinstance(lr, torch.Tensor) else lr


def loss_scale(scaler: torch.amp.GradScaler, *, device: torch.device | str) -> torch.Tensor:
    """The scale of a gradient scaler, 0-d float32 on `device`; 1 of a disabled one. `scaler.get_scale()` would wait.

    A step was left out for an overflow exactly where the scale after `scaler.update()` is below that before it:
    `loss_scale(scaler, device=device) < before`, a 0-d bool that need not be looked at.

    Args:
        scaler: It has scaled a loss already, or it now makes its scale on `device`.
        device: Where the gradients are.
    """
    return scaler.scale(torch.ones((), device=device))
