"""Experts that are split into populations: how much each gets, and how alike their weights are.

Enters: counts or weights of E experts. Leaves: shares, and one cosine a layer. Population p holds the experts from
p x E / P on, E / P of them. Both are reported and neither is judged: healthy runs had a cosine of 0.0001 to 0.018.

Shapes: L layers, E experts, P populations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable

from trimtab.errors import UsageError
from trimtab.torch.router.inputs import checked_populations

Weights = torch.Tensor | Sequence[torch.Tensor]
"""(E, ...) of one layer: one tensor, or several (up and down projection) that are one vector together."""

_MOST_WIDE: Final = 2**18
"""Weights that are in float32 at once: 1 MB, which stays in a CPU's cache."""

_MOST_WIDE_ON_DEVICE: Final = 2**22
"""Likewise on a device, 16 MB: fewer would cost a large layer thousands of small operations more."""


@torch.no_grad()
def population_shares(counts: torch.Tensor | Sequence[int], *, num_populations: int) -> torch.Tensor:
    """The share of routed tokens that each population gets; a figure without a gradient.

    Args:
        counts: (E,) or (L, E), tokens of each expert.
        num_populations: P, which divides E.

    Returns:
        (P,) or (L, P) float32, which sum to 1; NaN (None in a report) where there is no token.

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
    num_populations = checked_populations(num_populations, num_experts=load.shape[-1])
    tokens = load.float().reshape(*load.shape[:-1], num_populations, -1).sum(-1)
    return tokens / tokens.sum(-1, keepdim=True)


def population_cosine(weights: torch.Tensor | Sequence[Weights], *, num_populations: int) -> torch.Tensor:
    """The cosine between the flattened weights of the populations, one for each layer; differentiable, once.

    Some megabytes of the weights are in float32 at a time, whatever their size; a gradient is of their own dtype.

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
    """Of one layer, by the products of its populations, summed over its parts."""
    for part in parts:
        if not isinstance(part, torch.Tensor) or not part.is_floating_point() or part.dim() < 1:
            found = f"{tuple(part.shape)} {part.dtype}" if isinstance(part, torch.Tensor) else type(part).__name__
            raise UsageError(
                f"weights must be floating-point tensors (E, ...), one row for each expert; found {found}."
            )
    sizes = list(dict.fromkeys(part.shape[0] for part in parts))
    if len(sizes) != 1:
        raise UsageError(f"The weights of a layer are of {sizes or 'no'} experts, expected one number (E, ...).")
    num_populations = checked_populations(num_populations, num_experts=sizes[0], fewest=2)
    products = [_Products.apply(part, num_populations) for part in parts]  # type: ignore[no-untyped-call]
    together = torch.stack([of_part.to(products[0]) for of_part in products]).sum(0)
    # Bounded before the root, whose derivative at 0 is infinite, and not behind the product, which could overflow.
    norms = together.diagonal().clamp(min=torch.finfo(together.dtype).tiny).sqrt()
    pairs = [together[a, b] / (norms[a] * norms[b]) for a, b in combinations(range(num_populations), 2)]
    return torch.stack(pairs).mean()


class _Products(torch.autograd.Function):
    """The dot product of each population of a tensor (E, ...) with each, (P, P) float32 or float64.

    Some rows at a time are made wide, and none is kept for the gradient but the tensor itself: all experts in float32
    would be twice the size of a layer.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, num_populations: int) -> torch.Tensor:
        """Sums over columns of (P, numbers of a population)."""
        ctx.save_for_backward(part)
        ctx.num_populations = num_populations
        rows = part.detach().reshape(num_populations, -1)
        places = range(num_populations)
        pairs = [(a, b) for a in places for b in places if a <= b]
        sums = _wide(rows.new_zeros(len(pairs)))
        for columns in _slices(rows):
            wide = _wide(rows[:, columns])
            # Elements and no product of matrices, which may be of half the bits: under autocast, and as TF32.
            sums = sums + torch.stack([(wide[a] * wide[b]).sum() for a, b in pairs])
        return torch.stack([torch.stack([sums[pairs.index((min(a, b), max(a, b)))] for b in places]) for a in places])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Each population's: the others, times the gradients of the products with them."""
        (part,) = ctx.saved_tensors
        rows = part.reshape(ctx.num_populations, -1)
        weights = gradient + gradient.T
        given = torch.empty_like(rows)
        for columns in _slices(rows):
            wide = _wide(rows[:, columns])
            for place in range(ctx.num_populations):
                given[place, columns] = (weights[place][:, None] * wide).sum(0).to(given.dtype)
        return given.reshape(part.shape), None


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _slices(rows: torch.Tensor) -> Iterator[slice]:
    """Columns of (P, N) that are made wide at once."""
    most = _MOST_WIDE if rows.device.type == "cpu" else _MOST_WIDE_ON_DEVICE
    step = max(1, most // rows.shape[0])
    return (slice(begin, begin + step) for begin in range(0, rows.shape[1], step))
