"""How much of each term is in a gradient, by least squares over dot products.

    gradient handed to the optimizer = c x (gradient of ce) + sum of w_k x (gradient of term k) + rest

Enters: dot products of these gradients, micro-batch by micro-batch; a matrix each. Leaves: the w_k, how far they may be
off, and the c of each micro-batch; or the same matrix for sums of these gradients. Invariant: c is free in each
micro-batch (a loss of tokens weighs micro-batches by their tokens), so that nothing of ce is taken for a term.
Standard library only; Python's floats are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Gram = Sequence[Sequence[float]]
"""(M, M) dot products of M gradients of one micro-batch."""

PARALLEL: Final = 1e-6
"""Share of a gradient, squared, that must be its own, and not of ce or another term: below it the two are told apart by
the last digits of float32 only, whose roundings are some 1e-7 of a gradient."""

_ROUNDING: Final = 1e-7
"""Of float32, relative: a rest is never taken for smaller than this share of the gradient."""

_NOTICED: Final = 1e-3
"""Share of a gradient from which on a term in it is there at all: less is not felt beside the noise of a
micro-batch."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a gradient is made of.

    Attributes:
        weights: (K,) of each term; None where it cannot be told from ce or another term, or has no gradient.
        bounds: (K,) how far each may be off: a rest as large as the one found, if it lay along the term.
        noticed: (K,) the weight with which each would be a thousandth of the gradient; infinite without a gradient.
        ce: (B,) the weight of ce in each micro-batch; None where ce has no gradient there.
        unexplained: 2-norm of the rest.
        beside_ce: 2-norm of what is not ce.
        size: 2-norm of the whole.
    """

    weights: tuple[float | None, ...]
    bounds: tuple[float, ...]
    noticed: tuple[float, ...]
    ce: tuple[float | None, ...]
    unexplained: float
    beside_ce: float
    size: float

    @property
    def rest_share(self) -> float:
        """The rest's share of what is not ce, of the squares; 0 where everything is ce."""
        return (self.unexplained / self.beside_ce) ** 2 if self.beside_ce > 0.0 else 0.0


def project(grams: Sequence[Gram], *, target: int, ce: int, terms: Sequence[int]) -> Fit:
    """Fits one gradient by others, over all micro-batches together.

    Args:
        grams: (B, M, M), one a micro-batch.
        target: Place of the gradient that is fitted.
        ce: Place of the one whose weight is free in each micro-batch.
        terms: Places of those whose weight is one for all.
    """
    asked = [target, *terms]
    left = [[math.fsum(_beside(gram, one, other, ce=ce) for gram in grams) for other in asked] for one in asked]
    whole = [math.fsum(gram[place][place] for gram in grams) for place in asked]
    usable = [k for k in range(1, len(asked)) if whole[k] > 0.0 and left[k][k] > PARALLEL * whole[k]]
    usable, inverse = _independent(left, usable)
    along = [left[k][0] for k in usable]
    solved = [math.fsum(row[j] * along[j] for j in range(len(usable))) for row in inverse]
    weights: list[float | None] = [None] * len(terms)
    bounds = [math.inf] * len(terms)
    rest = max(0.0, left[0][0] - math.fsum(map(math.prod, zip(solved, along, strict=True))))
    for place, k in enumerate(usable):
        weights[k - 1] = solved[place]
        bounds[k - 1] = math.sqrt(max(rest, _ROUNDING**2 * whole[0]) * max(0.0, inverse[place][place]))
    return Fit(
        weights=tuple(weights),
        bounds=tuple(bounds),
        noticed=tuple(_NOTICED * math.sqrt(whole[0] / own) if own > 0.0 else math.inf for own in whole[1:]),
        ce=tuple(_weight_of_ce(gram, target=target, ce=ce, terms=terms, weights=weights) for gram in grams),
        unexplained=math.sqrt(rest),
        beside_ce=math.sqrt(max(0.0, left[0][0])),
        size=math.sqrt(max(0.0, whole[0])),
    )


def scaled(gram: Gram, *, factor: float, places: Sequence[int]) -> Gram:
    """The dot products where the gradients at some places are so many times as large."""
    by = [factor if place in places else 1.0 for place in range(len(gram))]
    return [[by[i] * by[j] * value for j, value in enumerate(row)] for i, row in enumerate(gram)]


def without(gram: Gram, *, place: int, parts: Mapping[int, float]) -> Gram:
    """The dot products where the gradient at a place is without so much of some others."""
    row = [math.fsum([gram[place][j], *(-w * gram[k][j] for k, w in parts.items())]) for j in range(len(gram))]
    row[place] = math.fsum([row[place], *(-weight * row[k] for k, weight in parts.items())])
    changed = [list(other) for other in gram]
    for j, value in enumerate(row):
        changed[place][j] = changed[j][place] = value
    return changed


def _beside(gram: Gram, one: int, other: int, *, ce: int) -> float:
    """The dot product of two gradients without what of them lies along ce."""
    along = gram[ce][ce]
    return gram[one][other] - (gram[one][ce] * gram[ce][other] / along if along > 0.0 else 0.0)


def _independent(left: list[list[float]], usable: list[int]) -> tuple[list[int], list[list[float]]]:
    """The terms that can be told from one another, and the inverse of their dot products.

    Of two that are nearly parallel neither is among them, nor are three of which one is made of the others: which of
    them has the weight, nobody knows.
    """
    while True:
        sizes = [math.sqrt(left[k][k]) for k in usable]
        alike = [
            [left[a][b] / (x * y) for b, y in zip(usable, sizes, strict=True)]
            for a, x in zip(usable, sizes, strict=True)
        ]
        dropped = {
            place
            for place, row in enumerate(alike)
            if any(1.0 - value * value < PARALLEL for other, value in enumerate(row) if other != place)
        }
        inverse = None if dropped else _inverse(alike)
        if not dropped and inverse is None:
            dropped = set(range(len(usable)))
        elif inverse is not None:
            # 1 / what is a term's own; below 0 where rounding has left nothing of it.
            dropped = {place for place in range(len(usable)) if not 0.0 < inverse[place][place] * PARALLEL <= 1.0}
        if not dropped:
            assert inverse is not None
            own = [
                [value / (x * y) for value, y in zip(row, sizes, strict=True)]
                for row, x in zip(inverse, sizes, strict=True)
            ]
            return usable, own
        usable = [k for place, k in enumerate(usable) if place not in dropped]


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """By Gauss and Jordan with the largest pivot; None where there is none."""
    size = len(matrix)
    rows = [[*row, *(float(place == other) for other in range(size))] for place, row in enumerate(matrix)]
    for place in range(size):
        best = max(range(place, size), key=lambda other: abs(rows[other][place]))
        if abs(rows[best][place]) < 1e-14:  # of a matrix with ones on its diagonal
            return None
        rows[place], rows[best] = rows[best], rows[place]
        pivot = rows[place][place]
        rows[place] = [value / pivot for value in rows[place]]
        for other in range(size):
            if other != place and (factor := rows[other][place]) != 0.0:
                rows[other] = [value - factor * mine for value, mine in zip(rows[other], rows[place], strict=True)]
    return [row[size:] for row in rows]


def _weight_of_ce(
    gram: Gram, *, target: int, ce: int, terms: Sequence[int], weights: Sequence[float | None]
) -> float | None:
    along = gram[ce][ce]
    if along <= 0.0:
        return None
    known = math.fsum(
        weight * gram[ce][term] for term, weight in zip(terms, weights, strict=True) if weight is not None
    )
    return (gram[ce][target] - known) / along
