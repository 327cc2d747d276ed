"""With which weight ce holds a term already, by the parts of gradients that ce has none of.

Enters: dot products of these parts, of each micro-batch and kind. Leaves: the weight of each term that is in ce.
Invariant: a kind counts only where terms explain nearly all that ce has of it: what a model's own ce has there, no
term explains. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.rules.aux.projection import Fit, Gram, project

_EXPLAINED: Final = 0.95
"""Share, of squares, of ce's part that terms must explain: all but half precision's rounding. Of chance they explain
some K / `num_free` of it."""

_FREE: Final = 16
"""Directions for each term from which on they cannot explain it by chance."""

_THERE: Final = 1e-5
"""Share of ce's gradient by the logits from which on a part is more than rounding in float32."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Parts of the gradients of one micro-batch.

    Attributes:
        gram: (K + 2, K + 2) dot products of ce's part, those of K terms, and zeros.
        num_free: In how many directions a part can point.
        whole: Square of ce's whole gradient by the logits.
    """

    gram: Gram
    num_free: int
    whole: float


def held_in_ce(measured: Sequence[Sequence[Outside]], *, terms: Sequence[int]) -> Mapping[int, tuple[float, float]]:
    """The weight of terms in ce, and how far it may be off; those that are not in it are left out.

    Args:
        measured: (B,) of the kinds of each micro-batch, the same everywhere.
        terms: Which terms, by their place among the K.
    """
    held: dict[int, tuple[float, float]] = {}
    for kind in zip(*measured, strict=True):
        fit = project(
            [one.gram for one in kind], target=0, ce=len(kind[0].gram) - 1, terms=[1 + term for term in terms]
        )
        if not _says_something(fit, kind, num_terms=len(terms)):
            continue
        for place, (weight, bound) in enumerate(zip(fit.weights, fit.bounds, strict=True)):
            if weight is None or abs(weight) <= 2.0 * bound:
                continue
            if place not in held or bound < held[place][1]:
                held[place] = (weight, bound)
    return held


def _says_something(fit: Fit, kind: Sequence[Outside], *, num_terms: int) -> bool:
    is_there = fit.size > _THERE * math.sqrt(math.fsum(one.whole for one in kind))
    is_free = sum(one.num_free for one in kind) >= _FREE * num_terms
    return is_there and is_free and fit.rest_share <= 1.0 - _EXPLAINED
