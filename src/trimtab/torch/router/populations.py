"""Experts that are split into populations: how much each gets, and how alike their weights are.

Enters: counts or weights of E experts. Leaves: shares, and one cosine a layer. Population p holds the experts from
p x E / P on, E / P of them. Both are reported and neither is judged: healthy runs had a cosine of 0.0001 to 0.018.

Shapes: L layers, E experts, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from trimtab.errors import UsageError

Weights = torch.Tensor | Sequence[torch.Tensor]
"""(E, ...) of one layer: one tensor, or several (up and down projection) that are one vector together."""


@torch.no_grad()
def population_shares(counts: torch.Tensor | Sequence[int], *, num_populations: int) -> torch.Tensor:
    """The share of routed tokens that each population gets; a figure without a gradient.

    Args:
        counts: (E,) or (L, E), tokens of each expert.
        num_populations: P, which divides E.

    Returns:
        (P,) or (L, P) float32, which sum to 1; NaN where there is no token.

    Raises:
        UsageError: The shape is another, or P does not divide E.

    Example:
        >>> population_shares([6, 2, 1, 1], num_populations=2).tolist()
        [0.800000011920929, 0.20000000298023224]
    """
    load = torch.as_tensor(counts)
    if load.dim() not in (1, 2) or load.dtype == torch.bool or load.is_complex():
        raise UsageError(
            f"counts has shape {tuple(load.shape)} and dtype {load.dtype}, expected (E,) or (L, E) numbers of tokens."
        )
    size = _population_size(load.shape[-1], num_populations, fewest=1)
    tokens = load.float().reshape(*load.shape[:-1], num_populations, size).sum(-1)
    return tokens / tokens.sum(-1, keepdim=True)


def population_cosine(weights: torch.Tensor | Sequence[Weights], *, num_populations: int) -> torch.Tensor:
    """The cosine between the flattened weights of the populations, one for each layer; differentiable.

    Args:
        weights: (E, ...) floating point, the experts' weights of one layer; or a list of layers, each a tensor or the
            several tensors of its experts.
        num_populations: P, which divides E; 2 or more. Of more than two it is the mean over their pairs.

    Returns:
        0-d, or (L,) for a list; from -1 to 1, float32 (float64 for float64); 0 where a population is all zeros.

    Raises:
        UsageError: The weights are not floating point or differ in E, or P does not divide E, or is 1.

    Example:
        >>> population_cosine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), num_populations=2).item()
        0.0
    """
    if isinstance(weights, torch.Tensor):
        return _cosine([weights], num_populations)
    if not weights:
        raise UsageError("weights is an empty list: pass the expert weights of at least one layer, (E, ...).")
    layers = [[layer] if isinstance(layer, torch.Tensor) else list(layer) for layer in weights]
    cosines = [_cosine(layer, num_populations) for layer in layers]
    return torch.stack([cosine.to(cosines[0].device) for cosine in cosines])


def _cosine(parts: Sequence[torch.Tensor], num_populations: int) -> torch.Tensor:
    """Of one layer, whose parts are not put together: a copy of all experts would be the size of the layer."""
    for part in parts:
        if not isinstance(part, torch.Tensor) or not part.is_floating_point() or part.dim() < 1:
            found = f"{tuple(part.shape)} {part.dtype}" if isinstance(part, torch.Tensor) else type(part).__name__
            raise UsageError(
                f"weights must be floating-point tensors (E, ...), one row for each expert; found {found}."
            )
    sizes = list(dict.fromkeys(part.shape[0] for part in parts))
    if len(sizes) != 1:
        raise UsageError(f"The weights of a layer are of {sizes or 'no'} experts, expected one number (E, ...).")
    size = _population_size(sizes[0], num_populations, fewest=2)
    wide = [part if part.dtype == torch.float64 else part.float() for part in parts]
    populations = [[part[p * size : (p + 1) * size] for part in wide] for p in range(num_populations)]
    # Bounded before the root, whose derivative at 0 is infinite, and not behind the product, which could overflow.
    norms = [_dot(own, own).clamp(min=torch.finfo(wide[0].dtype).tiny).sqrt() for own in populations]
    pairs = [
        _dot(populations[a], populations[b]) / (norms[a] * norms[b]) for a, b in combinations(range(num_populations), 2)
    ]
    return torch.stack(pairs).mean()


def _dot(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> torch.Tensor:
    device = first[0].device
    return torch.stack([(a * b).sum().to(device) for a, b in zip(first, second, strict=True)]).sum()


def _population_size(num_experts: int, num_populations: int, *, fewest: int) -> int:
    is_number = isinstance(num_populations, int) and not isinstance(num_populations, bool)
    if not is_number or not fewest <= num_populations <= num_experts or num_experts % num_populations:
        raise UsageError(
            f"num_populations must be a whole number from {fewest} on that divides the {num_experts} experts, found "
            f"{num_populations!r}: each population has as many experts as any other."
        )
    return num_experts // num_populations
