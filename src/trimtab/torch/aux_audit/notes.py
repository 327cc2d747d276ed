"""What an audit says beside its findings: the factor of the whole loss, what ce holds, and which calls it went by.

Enters: what was fitted. Leaves: a sentence each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trimtab.rules.aux.values import TermWeight
from trimtab.text import listed, plain
from trimtab.torch.aux_audit.calls import IN_WORDS, Reading
from trimtab.torch.aux_audit.fitted import HARDLY, Fitted

_ALIKE: Final = 1.5
"""How far ce's weight may be from 1 without a word: by its count of tokens it is a little off in most loops."""


def stands_otherwise(fitted: Fitted) -> bool:
    """Whether ce stands in the gradient with a factor that the terms lack: their weights are then not what they do."""
    scaled = any(by != 1.0 for by in fitted.factors)
    return not scaled and fitted.ce is not None and not 1.0 / _ALIKE <= fitted.ce <= _ALIKE


def notes_of(fitted: Fitted, terms: Sequence[TermWeight], *, reading: Reading) -> list[str]:
    """The sentences, none where there is nothing to say.

    Args:
        fitted: What was fitted.
        terms: The terms, with the weights that were found.
        reading: Which calls of the routers were taken.
    """
    notes = []
    if any(by != 1.0 for by in fitted.factors):
        factor = math.fsum(fitted.factors) / len(fitted.factors)
        notes.append(
            f"a factor of {factor:.4g} is on ce and on the whole loss (loss scaling, a sum over tokens, a division by "
            "ranks): weights are told without it"
        )
    elif fitted.ce is not None and abs(fitted.ce) <= HARDLY:
        notes.append("ce is not in the gradient of total, or hardly: is it detached")
    elif stands_otherwise(fitted):
        notes.append(
            f"ce weighs {fitted.ce:.4g} in the gradient, and terms do not have that factor: beside ce, which is what "
            f"matters to a router, each weighs 1 / {fitted.ce:.4g} of what is told. Divide both alike, or hand over ce "
            "as it stands in total"
        )
    held = [f"{plain(term.name)} with {term.in_ce:.4g}" for term in terms if term.in_ce != 0.0]
    if held:
        notes.append(
            f"ce holds {listed(held)}, which is counted in what they weigh: ce is to be the loss without any term, of "
            "a Hugging Face model that of a forward with output_router_logits=False"
        )
    if fitted.num_calls > 1 and (reading != "first" or fitted.has_rest):
        often = f"a router was called {fitted.num_calls} times within losses"
        if fitted.has_rest:
            notes.append(
                f"{often}, and no reading of these calls explains the gradient: have losses give the logits that the "
                'terms are made of as "router_logits", layer by layer'
            )
        else:
            notes.append(f"{often}: the terms are those of {IN_WORDS[reading]}")
    return notes
