"""Gradients of several values side by side, and their dot products.

Enters: 0-d values of one micro-batch and the parameters of the routers. Leaves: dot products in float64, (M, M) for M
gradients, and nothing of the gradients themselves. Invariant: `torch.autograd.grad` alone is called, so that no `.grad`
is touched and no hook of DistributedDataParallel fires.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.errors import UsageError
from trimtab.text import plain

Gradients = list[torch.Tensor | None]
"""One gradient: its part for each parameter; None where the value does not depend on it."""


def gradient(value: torch.Tensor, parameters: Sequence[torch.Tensor], *, name: str) -> Gradients:
    """The gradient of one value; its graph stays.

    Args:
        value: 0-d; of a constant the gradient is zero.
        parameters: By which it is differentiated.
        name: What to call it in a message.

    Raises:
        UsageError: There is no graph to go through any more, or one that cannot be gone through this way.
    """
    if not value.requires_grad:
        return [None] * len(parameters)
    try:
        return list(torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True))
    except RuntimeError as error:
        said = str(error)
        if "heckpoint" in said and ".grad()" in said:
            raise UsageError(
                "The model recomputes activations with torch's reentrant checkpoint, which cannot tell gradients of "
                "several terms apart: pass use_reentrant=False to it, or switch it off for the audit."
            ) from error
        raise UsageError(
            f"The gradient of {plain(name)} could not be taken: {plain(said)}. losses= must give tensors of one "
            "forward, before any backward."
        ) from error


def dot_products(gradients: Sequence[Gradients]) -> list[list[float]]:
    """Of each gradient with each, in float64; waits for the device.

    Args:
        gradients: M of them, over the same parameters.
    """
    sums: torch.Tensor | None = None
    for parts in zip(*gradients, strict=True):
        some = next((part for part in parts if part is not None), None)
        if some is None:
            continue
        zeros = torch.zeros_like(some)
        rows = torch.stack([(zeros if part is None else part).detach().flatten() for part in parts])
        # Some devices have no float64.
        wide = (rows.cpu() if rows.device.type == "mps" else rows).to(torch.float64)
        product = wide @ wide.T
        sums = product if sums is None else sums + product.to(sums.device)
    count = len(gradients)
    return [[0.0] * count for _ in range(count)] if sums is None else sums.tolist()
