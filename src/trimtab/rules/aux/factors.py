"""Which mistake makes a weight, or a logged value, so many times what it ought to be.

Enters: the factor, and the sizes of the model and the loop. Leaves: what would explain it, in words. Invariant: only a
factor that fits to 2 % is named, and all that fit are, for at E = 8 and L = 8 a factor of 8 tells not which. Standard
library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FITS: Final = 0.02
"""How far, relative, a factor may be from one that is named. Above what float32 and a loss on few tokens leave of a
projection (1e-4 measured on tiny models), far below the step from one factor to the next."""

_POWERS: Final = tuple(10.0**power for power in range(-6, 7) if power != 0)
"""Factors that somebody wrote inside a term: `0.01 * ...` is the common one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the factors between conventions are made of.

    Attributes:
        accumulation: N, micro-batches of an optimizer step.
        num_layers: L, routers; None where it is not known.
        num_experts: E; None where it is not known, or differs between layers.
        top_k: k; None where it is not known.
        over_layers: How layers are put together in the term as stated: "sum" or "mean".
        is_divided: Whether the load-balance loss as stated is divided by k; None for another term.
    """

    accumulation: int
    num_layers: int | None = None
    num_experts: int | None = None
    top_k: int | None = None
    over_layers: str = "mean"
    is_divided: bool | None = None


def fits(value: float, wanted: float) -> bool:
    """Whether two numbers are the same to 2 %."""
    return math.isfinite(value) and abs(value - wanted) <= FITS * abs(wanted)


def is_power_of_ten(factor: float) -> bool:
    """Whether it is 0.1, 0.01, 10 and so on, and not 1."""
    return any(fits(factor, power) for power in _POWERS)


def conventions(factor: float, *, sizes: Sizes) -> list[str]:
    """What of the model's and the loop's sizes gives a factor: words for each that fits.

    Args:
        factor: Found / stated, not 1.
        sizes: Those of the model and the loop.
    """
    return [words for wanted, words in _known(sizes) if wanted != 1.0 and fits(factor, wanted)]


def _known(sizes: Sizes) -> list[tuple[float, str]]:
    count = sizes.accumulation
    known = [
        (1.0 / count, f"1/{count}: it is divided by the accumulation once too often"),
        (float(count), f"{count}: it is not divided by the accumulation"),
        (-1.0, "-1: it is subtracted"),
    ]
    by_k = _by_k(sizes)
    by_layers = _by_layers(sizes)
    known += by_k + by_layers
    known += [(one * other, f"{words}, and {more}") for one, words in by_k for other, more in by_layers]
    if sizes.is_divided is not None and sizes.num_experts is not None:
        experts = sizes.num_experts
        known.append((1.0 / experts, f"1/{experts}: it lacks the factor E = {experts}"))
    return known


def _by_k(sizes: Sizes) -> list[tuple[float, str]]:
    if sizes.is_divided is None or sizes.top_k is None or sizes.top_k == 1:
        return []
    k = sizes.top_k
    if sizes.is_divided:
        return [(float(k), f'k = {k}: it is not divided by k, as convention="hf" is not')]
    return [(1.0 / k, f'1/k = 1/{k}: it is divided by k, as convention="switch" is')]


def _by_layers(sizes: Sizes) -> list[tuple[float, str]]:
    if sizes.num_layers is None or sizes.num_layers == 1:
        return []
    layers = sizes.num_layers
    if sizes.over_layers == "sum":
        return [(1.0 / layers, f'1/L = 1/{layers}: it is the mean over layers, as over_layers="mean" is')]
    return [(float(layers), f'L = {layers}: it is the sum over layers, as over_layers="sum" is')]
