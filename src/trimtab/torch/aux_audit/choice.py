"""Which form of each term a loss has, and of which calls of its routers, by what explains its gradient far better.

Enters: how micro-batches are measured. Leaves: a `Fitted`. Invariant: a form other than the stated one is taken
only where the stated ones leave much of the gradient unexplained and it leaves little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.torch.aux_audit.calls import READINGS
from trimtab.torch.aux_audit.fitted import Fitted
from trimtab.torch.aux_audit.forms import Definitions, Form
from trimtab.torch.aux_audit.measure import Made, Measuring

_FAR_BETTER: Final = 0.1
"""Share of the rest, of squares, that another form may leave to be taken for what the loss has."""


def best_reading(
    measuring: Measuring, micro_batches: Sequence[Any], made: Mapping[str, Made], *, weights: Mapping[str, float]
) -> tuple[Fitted, Measuring]:
    """What was measured, and with which calls of routers that were called more than once.

    Args:
        measuring: Measures with the first call.
        micro_batches: Of the audit.
        made: The terms, by name.
        weights: What they are to weigh, in the same order.
    """

    def fitted(by: Measuring) -> Fitted:
        measured = [by.measure(batch, made) for batch in micro_batches]
        return Fitted.of(measured, terms=range(len(made)), stated=list(weights.values()))

    first = fitted(measuring)
    if first.num_calls < 2 or not first.has_rest:
        return first, measuring
    tried = [(first, measuring)]
    for reading in READINGS[1:]:
        other = replace(measuring, reading=reading)
        try:
            tried.append((fitted(other), other))
        except UsageError:
            continue  # the mask is of other tokens, so they are not read this way
    return min(tried, key=lambda one: one[0].once.unexplained)


def best_form(
    stated: Fitted,
    measuring: Measuring,
    micro_batches: Sequence[Any],
    made: Mapping[str, Made],
    *,
    weights: Mapping[str, float],
    own: Sequence[str],
    definitions: Definitions,
) -> Fitted:
    """The stated forms, or, where it explains the gradient far better, one term in another form.

    Args:
        stated: What was fitted with the stated forms.
        measuring: Measures again, with the other forms beside them.
        micro_batches: The same.
        made: The stated forms, by name.
        weights: What they are to weigh, in the same order.
        own: The terms that have a definition here, and other forms.
        definitions: Of those.
    """
    # Where a stated term cannot be told from another, what it weighs is part of the rest, and no form explains it.
    if not stated.has_rest or None in stated.once.weights:
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
        chosen = Fitted.of(measured, terms=terms, stated=list(weights.values()), other={name: words})
        if chosen.once.unexplained < best.once.unexplained:
            best = chosen
    # Of low precision a rest is left by the right form too.
    explains = best.is_rough or not best.has_rest
    return best if explains and best.once.unexplained**2 <= _FAR_BETTER * stated.once.unexplained**2 else stated


def of_logits(form: Form) -> Made:
    """A form of a term, made of what was heard."""
    return lambda seen: form(seen.logits, seen.mask)
