"""Which form of each term a loss has: the stated one, or another that explains its gradient far better.

Enters: what was measured of each micro-batch. Leaves: a `Fitted`. Invariant: a form other than the stated one is taken
only where the stated ones leave much of the gradient unexplained and it leaves little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.rules.aux.projection import Fit, project
from trimtab.torch.aux_audit.forms import Definitions, Form
from trimtab.torch.aux_audit.measure import CE_AT, FIRST_TERM_AT, TOTAL_AT, WINDOW_AT, Made, Measured, Measuring

_REST: Final = 0.01
"""Share, of squares, of what is not ce that the stated forms may leave unexplained before others are tried. Rounding in
float32 left 1e-4 at most, on tiny models."""

_ROUNDING: Final = 1e-6
"""Share of a whole gradient that may be rounding, in which no form is looked for: ten times that of float32."""

_FAR_BETTER: Final = 0.1
"""Share of the rest, of squares, that another form may leave to be taken for what the loss has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The forms that an audit goes by, and what was fitted with them.

    Attributes:
        measured: Numbers of each micro-batch.
        terms: At which place of a micro-batch's terms each stated one is.
        once: The loss at accumulation 1.
        window: The loss of a whole window.
        other: By the name of a term, the form that it has in place of the stated one, in words.
    """

    measured: Sequence[Measured]
    terms: Sequence[int]
    once: Fit
    window: Fit
    other: Mapping[str, str]

    @classmethod
    def of(
        cls, measured: Sequence[Measured], *, terms: Sequence[int], other: Mapping[str, str] | None = None
    ) -> Fitted:
        """Fits the loss, at accumulation 1 and of a window, by the terms at these places."""
        grams = [one.gram for one in measured]
        places = [FIRST_TERM_AT + place for place in terms]
        return cls(
            measured=measured,
            terms=terms,
            once=project(grams, target=TOTAL_AT, ce=CE_AT, terms=places),
            window=project(grams, target=WINDOW_AT, ce=CE_AT, terms=places),
            other=other or {},
        )

    def has_no_gradient(self, term: int) -> bool:
        """Whether the form of a term is a constant."""
        place = FIRST_TERM_AT + self.terms[term]
        return all(one.gram[place][place] == 0.0 for one in self.measured)

    def mean(self, place: int) -> float:
        """A term's value as the mean over micro-batches."""
        return math.fsum(one.values[place] for one in self.measured) / len(self.measured)


def best_form(
    stated: Fitted,
    measuring: Measuring,
    micro_batches: Sequence[Any],
    made: Mapping[str, Made],
    *,
    own: Sequence[str],
    definitions: Definitions,
) -> Fitted:
    """The stated forms, or, where it explains the gradient far better, one term in another form.

    Args:
        stated: What was fitted with the stated forms.
        measuring: Measures again, with the other forms beside them.
        micro_batches: The same.
        made: The stated forms, by name.
        own: The terms that have a definition here, and other forms.
        definitions: Of those.
    """
    # Where a stated term cannot be told from another, what it weighs is part of the rest, and no form explains it.
    once = stated.once
    if once.rest_share <= _REST or once.unexplained <= _ROUNDING * once.size or None in once.weights:
        return stated
    num_layers = stated.measured[0].num_layers or 1
    tried: dict[str, Made] = dict(made)
    choices: list[tuple[str, str, int]] = []
    for name in own:
        others = definitions.others(name, num_layers=num_layers, has_mask=measuring.mask is not None)
        for words, form in others.items():
            choices.append((name, words, len(tried)))
            tried[f"{name}: {words}"] = of_logits(form)
    measured = [measuring.measure(batch, tried) for batch in micro_batches]
    names = list(made)
    best = stated
    for name, words, place in choices:
        terms = [place if other == name else at for at, other in enumerate(names)]
        chosen = Fitted.of(measured, terms=terms, other={name: words})
        if chosen.once.unexplained < best.once.unexplained:
            best = chosen
    return best if best.once.unexplained**2 <= _FAR_BETTER * stated.once.unexplained**2 else stated


def of_logits(form: Form) -> Made:
    """A form of a term, made of what was heard."""
    return lambda seen: form(seen.logits, seen.mask)
