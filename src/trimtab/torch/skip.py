"""What a skip is made of, in one process: a loss that reaches every parameter with an exact zero.

Multiplying a bad loss by zero is no skip: 0 x NaN is NaN, and a finite loss can have an infinite derivative. The zero
here never touches the bad graph; it hangs on empty slices of the parameters, so its value is 0.0 even where a
parameter is not finite, and its backward adds zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def anchored_zero(parameters: Iterable[nn.Parameter], *, like: torch.Tensor) -> torch.Tensor:
    """A zero whose backward gives every trainable parameter a gradient of exact zeros.

    Args:
        parameters: The model's parameters; frozen ones are passed over.
        like: Gives dtype and device of the result, for example the loss that is left out.

    Returns:
        A 0-d tensor with value 0.0.
    """
    zero = torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True)
    for parameter in parameters:
        # Dense zeros on a sparse gradient would make it dense, which its optimizer refuses.
        is_sparse = parameter.grad is not None and parameter.grad.is_sparse
        if parameter.requires_grad and not is_sparse:
            zero = zero + parameter.flatten()[:0].sum().to(device=like.device, dtype=like.dtype)
    return zero


def statistics_buffers(model: nn.Module) -> list[str]:
    """Names of the modules that take in a batch during forward, whatever becomes of its loss (batch norm and kin)."""
    return [
        name
        for name, module in model.named_modules()
        if getattr(module, "track_running_stats", False) and getattr(module, "running_mean", None) is not None
    ]
