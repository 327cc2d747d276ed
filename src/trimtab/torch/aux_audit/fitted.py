"""What was measured of micro-batches, and what the loss's gradient is made of.

Enters: a `Measured` of each micro-batch. Leaves: a `Fitted`: weights of terms as shares of the weight of ce.
Invariant: a factor on the whole loss (loss scaling, a sum over tokens, a division by ranks) is in no weight, and a
term that ce holds is counted with those that are beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.rules.aux.factors import FITS, fits
from trimtab.rules.aux.held import held_in_ce
from trimtab.rules.aux.projection import Fit, Gram, project, scaled, without
from trimtab.torch.aux_audit.measure import CE_AT, FIRST_TERM_AT, TOTAL_AT, WINDOW_AT, Measured

_ROUNDING: Final = 3e-6
"""Share of a whole gradient that may be rounding: float32 left 5e-7 of it at most in sound losses of tiny models."""

HARDLY: Final = 1e-6
"""Weight of ce below which it is not in the gradient: a division by all tokens of a batch is above."""

_SURE: Final = 4.0
"""Bounds that the weight of ce must be off from 1 by, to be a factor."""

_FAR_BETTER: Final = 0.1
"""Share of the rest that factors of each micro-batch may leave, to be taken in place of one for all."""

_ROUNDS: Final = 4
"""Of fits with a factor of each micro-batch, each of which starts from the last one's factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The forms that an audit goes by, and what was fitted with them.

    Attributes:
        measured: Numbers of each micro-batch.
        terms: At which place of a micro-batch's terms each stated one is.
        once: The loss at accumulation 1, by `factors`.
        window: The loss of a whole window, likewise.
        other: By the name of a term, the form that it has in place of the stated one, in words.
        factors: (B,) by which the gradients of the loss were divided.
        held: The weight of terms in ce and its bound, by place among `terms`; it is in the weights of the fits.
    """

    measured: Sequence[Measured]
    terms: Sequence[int]
    once: Fit
    window: Fit
    other: Mapping[str, str]
    factors: Sequence[float]
    held: Mapping[int, tuple[float, float]]

    @classmethod
    def of(
        cls,
        measured: Sequence[Measured],
        *,
        terms: Sequence[int],
        stated: Sequence[float],
        other: Mapping[str, str] | None = None,
    ) -> Fitted:
        """Fits the loss, at accumulation 1 and of a window, by the terms at these places, which are to weigh
        `stated`.
        """
        held = held_in_ce([one.outside for one in measured], terms=terms) if measured[0].outside else {}
        parts = {FIRST_TERM_AT + terms[place]: weight for place, (weight, _) in held.items()}
        grams = [without(one.gram, place=CE_AT, parts=parts) if parts else one.gram for one in measured]
        places = [FIRST_TERM_AT + place for place in terms]
        factors, once = _relative(grams, terms=places, stated=stated)
        grams = _divided(grams, factors)
        return cls(
            measured=measured,
            terms=terms,
            once=once,
            window=project(grams, target=WINDOW_AT, ce=CE_AT, terms=places),
            other=other or {},
            factors=factors,
            held=held,
        )

    @property
    def has_rest(self) -> bool:
        """Whether more is unexplained than float32 rounds away."""
        return self.once.unexplained > _ROUNDING * self.once.size

    @property
    def ce(self) -> float | None:
        """The weight of ce at accumulation 1, as the mean over micro-batches; None where it has no gradient."""
        known = [value * by for value, by in zip(self.once.ce, self.factors, strict=True) if value is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def is_rough(self) -> bool:
        """Whether gradients are of low precision."""
        return any(one.is_rough for one in self.measured)

    @property
    def num_calls(self) -> int:
        """How often a router was called, at most."""
        return max(one.num_calls for one in self.measured)

    def bound(self, fit: Fit, term: int) -> float:
        """How far a term's weight may be off, with what of it is in ce."""
        return fit.bounds[term] + self.held.get(term, (0.0, 0.0))[1]

    def has_no_gradient(self, term: int) -> bool:
        """Whether the form of a term is a constant."""
        place = FIRST_TERM_AT + self.terms[term]
        return all(one.gram[place][place] == 0.0 for one in self.measured)

    def mean(self, place: int) -> float:
        """A term's value as the mean over micro-batches."""
        return math.fsum(one.values[place] for one in self.measured) / len(self.measured)

    def rest_of_value(self) -> float:
        """What of the loss's value is neither ce nor a term with a gradient, as the mean over micro-batches."""
        rests = []
        for one, factor, of_ce in zip(self.measured, self.factors, self.once.ce, strict=True):
            values = [one.values[place] for place in self.terms]
            ce = one.ce - math.fsum(weight * values[place] for place, (weight, _) in self.held.items())
            known = [(weight or 0.0) * value for weight, value in zip(self.once.weights, values, strict=True)]
            rests.append(one.total / factor - (of_ce or 0.0) * ce - math.fsum(known))
        return math.fsum(rests) / len(rests)


def _relative(grams: Sequence[Gram], *, terms: Sequence[int], stated: Sequence[float]) -> tuple[Sequence[float], Fit]:
    """What the loss is divided by, and the fit of what is left.

    Not divided where the weights of terms are nearer to the stated ones as they are: what ce alone is divided by, as by
    the tokens of a window, is the loop's own matter. Else by the weight of ce, for then it is on the terms too: one for
    all micro-batches, or one of each, as a loss summed over tokens has.
    """

    def fit(factors: Sequence[float]) -> Fit:
        return project(_divided(grams, factors), target=TOTAL_AT, ce=CE_AT, terms=terms)

    ones = [1.0] * len(grams)
    absolute = fit(ones)
    of_ce = [value for value in absolute.ce if value is not None]
    size = math.sqrt(math.fsum(gram[CE_AT][CE_AT] for gram in grams))
    if len(of_ce) < len(grams) or size == 0.0:
        return ones, absolute
    bound = max(absolute.unexplained, _ROUNDING * absolute.size) / size
    mean = math.fsum(of_ce) / len(of_ce)
    if min(of_ce) <= 0.0 or mean <= _SURE * bound or abs(mean - 1.0) <= max(FITS, _SURE * bound):
        nearest = (ones, absolute)  # ce is hardly in it, or weighs 1
    else:
        factors = [mean] * len(grams)
        nearest = min((factors, fit(factors)), (ones, absolute), key=lambda one: _distance(one[1], stated))
    if min(of_ce) > 0.0 and not all(fits(value, mean) for value in of_ce):
        factors = of_ce
        for _ in range(_ROUNDS):
            factors = [by * (value or 1.0) for by, value in zip(factors, fit(factors).ce, strict=True)]
        each = fit(factors)
        if each.unexplained / each.size < _FAR_BETTER * nearest[1].unexplained / nearest[1].size:
            return factors, each
    return nearest


def _distance(fit: Fit, stated: Sequence[float]) -> float:
    """How far weights are from the stated ones, in factors; those that are 0 say nothing of it."""
    return math.fsum(
        abs(math.log(abs(weight / wanted)))
        for weight, bound, wanted in zip(fit.weights, fit.bounds, stated, strict=True)
        if weight is not None and wanted != 0.0 and abs(weight) > _SURE * bound
    )


def _divided(grams: Sequence[Gram], factors: Sequence[float]) -> list[Gram]:
    return [
        scaled(gram, factor=1.0 / factor, places=(TOTAL_AT, WINDOW_AT))
        for gram, factor in zip(grams, factors, strict=True)
    ]
