"""What the auxiliary terms of a loss really weigh, judged against what is stated.

    measured by a projection:  weight at accumulation 1 | at accumulation N | share of the loss's value | logged value
    stated by the user:        weight

Enters: a `TermWeight` for each term, with the numbers above. Leaves: findings, a sentence each with both numbers and
what to do. Invariant: a finding is made only where the difference is larger than what the measurement leaves open; what
it leaves open is said as a note and never guessed. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

from trimtab.rules.aux.factors import Sizes, conventions, fits, is_power_of_ten
from trimtab.rules.aux.logged import judge_logged
from trimtab.rules.aux.values import AuxAudit, TermWeight, finding_of
from trimtab.text import plain
from trimtab.watched import WatchFinding

_DIFFERS: Final = 0.05
"""Share of a stated weight that the real one may be off: a weight is tuned by factors (1e-3 killed a router that 1e-4
kept), and the smallest factor between conventions is 2."""

_SURE: Final = 2.0
"""Bounds that a weight must be off by: in half precision the terms' own gradients are rounded too, and weights were
found off by 0.8 bounds (a tiny Qwen3-MoE in bfloat16)."""

_ONE_PLACE: Final = "multiply by the weight once, at one place, and use a term without a factor of its own"
_OR_THE_STATED: Final = "or correct the stated weight, if that is what is wrong"

Rest = Literal["", "form", "precision"]
"""What of a gradient neither ce nor a term explains: nothing but the rounding of float32; something, which is another
form of a term or a thing that nobody names; or so much as half precision may have made."""

_WITHOUT_A_FACTOR: Final[dict[Rest, str]] = {
    "": "it is off, and so little of the gradient that no factor can be named; hand over more tokens",
    "form": "no factor of the term as it is defined explains that. The loss holds another form of it (of other "
    "probabilities, logits or tokens, or weighed by layer), or something else beside; compare its code with the "
    "definition, or hand it over in terms=",
    "precision": "it is off, and gradients of low precision do not tell by what; audit a float32 copy of the model",
}

_ANOTHER_FORM: Final = (
    "another form of a term is in the loss (of other probabilities, logits or tokens, or weighed by layer), or "
    "something that nobody names, or padding and mask= is not given; compare the loss with the definitions, name "
    "further terms in weights=, or pass mask="
)


_EXPLAINED: Final = 1e-3
"""Share, of squares, of what is not ce that may be unexplained in a sound loss: rounding in float32 left 1e-4 at
most."""

_OF_WEIGHT: Final = ("weight_differs", "weight_applied_twice", "weight_not_applied")


def judge_weights(
    terms: Sequence[TermWeight],
    *,
    ce: float | None = None,
    ce_accumulated: float | None = None,
    total_equals_ce: bool = False,
    rest: Rest = "",
    rest_share: float = 0.0,
    is_ce_in: bool = True,
    notes: Sequence[str] = (),
) -> AuxAudit:
    """Judges what was measured.

    Args:
        terms: The terms.
        ce: Weight of ce in the gradient at accumulation 1, mean over micro-batches; None where it is not known.
        ce_accumulated: The same of a whole window.
        total_equals_ce: Whether the gradient of the loss is that of ce and nothing else.
        rest: What it is that nothing explains.
        rest_share: Its share, of squares, of what of the gradient is not ce.
        is_ce_in: Whether ce is in the gradient, and terms have the factor that it has.
        notes: What else there is to say.

    Returns:
        The audit.
    """
    findings: list[WatchFinding] = []
    said = list(notes)
    swapped = _swapped(terms)
    for term in terms:
        of_term = judge_weight(term, total_equals_ce=total_equals_ce, rest=rest, swapped=swapped.get(term.name))
        findings += of_term
        if not term.is_known and not term.is_constant and not any(one.kind in _OF_WEIGHT for one in of_term):
            said.append(_unknown(term, rest))
    is_explained = is_ce_in and (rest != "form" or rest_share <= _EXPLAINED)
    if not is_explained and is_ce_in and not findings and all(term.is_known for term in terms):
        said.append(f"{rest_share:.2g} of what the gradient holds beside ce (of squares) is no term: {_ANOTHER_FORM}")
    count = terms[0].sizes.accumulation if terms else 1
    if (of_ce := _judge_ce(ce, ce_accumulated, accumulation=count)) is not None:
        findings.append(of_ce)
    return AuxAudit(weights=tuple(terms), findings=tuple(findings), notes=tuple(said), is_explained=is_explained)


def judge_weight(
    term: TermWeight, *, total_equals_ce: bool = False, rest: Rest = "", swapped: TermWeight | None = None
) -> list[WatchFinding]:
    """The findings of one term.

    Args:
        term: What was measured of it.
        total_equals_ce: As for `judge_weights`.
        rest: Likewise.
        swapped: The term that has its weight, where that has this one's.
    """
    findings = []
    if swapped is not None:
        findings.append(_of_swapped(term, swapped))
    elif (of_weight := _of_weight(term, total_equals_ce=total_equals_ce, rest=rest)) is not None:
        findings.append(of_weight)
    if (of_window := _of_accumulation(term)) is not None:
        findings.append(of_window)
    for where, logged, is_window in (
        ("the logged value", term.logged, False),
        ("the logged value of a window", term.logged_window, True),
    ):
        if logged is not None and (of_log := judge_logged(term, logged, where=where, is_window=is_window)) is not None:
            findings.append(of_log)
    return findings


def _of_weight(term: TermWeight, *, total_equals_ce: bool, rest: Rest) -> WatchFinding | None:
    name, stated = plain(term.name), term.stated
    if term.is_constant:
        return finding_of(
            "constant_aux",
            term,
            f"{name} is in the loss's value with its weight {stated:g}, and its gradient is 0: it is detached, or made "
            "of what argmax or topk gave alone; compute it from the router's logits, without detach, item or no_grad",
        )
    found = term.found
    if found is None or (term.other_form == "" and not _is_off(found, stated, term.bound)):
        return None
    if stated == 0.0 and abs(found) <= term.noticed:
        return None
    said = f"{name} weighs {found:.4g} in the gradient, stated {stated:g}"
    if term.other_form:
        return finding_of(
            "weight_differs",
            term,
            f"{name} is in the gradient as {term.other_form}, and weighs {found:.4g}; stated is {stated:g}, of another "
            "form, which is not the same number: state the weight of the loss's form, or change the loss",
        )
    if term.is_absent and rest != "form":
        why = "the loss is ce alone" if total_equals_ce else "the loss does not hold it"
        also = ", unless ce holds it already: then give ce without it" if total_equals_ce else ""
        return finding_of(
            "weight_not_applied", term, f"{said}: {why}; add weight x term to what backward is called on{also}"
        )
    if not term.fits_form:
        return finding_of("weight_differs", term, f"{_vague(term)}: {_WITHOUT_A_FACTOR[rest]}")
    if stated == 0.0:
        return finding_of(
            "weight_differs", term, f"{said}: the loss holds a term that is said to be off. Find who adds it"
        )
    if term.in_ce != 0.0 and fits(found - term.in_ce, stated):
        text = f"{said}: ce holds it with {term.in_ce:.4g}, and the loss adds {found - term.in_ce:.4g} once more"
        return finding_of("weight_applied_twice", term, f"{text}; add it at one place")
    return _of_factor(term, found, said)


def _of_factor(term: TermWeight, found: float, said: str) -> WatchFinding:
    """Of a term that is in the gradient as it is defined, so many times as much as is stated."""
    stated, factor = term.stated, found / term.stated
    if stated != 1.0 and fits(found, stated * stated):
        text = f"{said}: it is the weight squared ({stated:g} x {stated:g} = {stated * stated:g}), applied twice"
        return finding_of("weight_applied_twice", term, f"{text}; {_ONE_PLACE}")
    named = conventions(factor, sizes=term.sizes)
    if is_power_of_ten(factor):
        also = f", or the factor is {' or '.join(named)}" if named else ""
        text = f"{said}: a factor of {factor:.3g} stands inside the term beside the weight outside{also}"
        return finding_of("weight_applied_twice", term, f"{text}; {_ONE_PLACE}, {_OR_THE_STATED}")
    if named:
        text = f"{said}, a factor of {' or '.join(named)}"
        remedy = "state the weight that goes with the form that the loss has, or change the loss"
        return finding_of("weight_differs", term, f"{text}; {remedy}, {_OR_THE_STATED}")
    text = f"{said}, {factor:.4g} times as much, which no known convention explains"
    return finding_of("weight_differs", term, f"{text}; {_ONE_PLACE}, {_OR_THE_STATED}")


def _vague(term: TermWeight) -> str:
    return f"the weight of {plain(term.name)} is {term.found:.4g} to within {term.bound:.2g}, stated {term.stated:g}"


def _swapped(terms: Sequence[TermWeight]) -> dict[str, TermWeight]:
    """By the name of a term, the one with which its weight is exchanged."""
    swapped = {}
    for one, other in combinations(terms, 2):
        known = one.found is not None and other.found is not None and one.fits_form and other.fits_form
        if known and one.stated != 0.0 != other.stated and not fits(one.stated, other.stated):
            assert one.found is not None and other.found is not None  # noqa: PT018 - for the type checker
            if fits(one.found, other.stated) and fits(other.found, one.stated):
                swapped[one.name], swapped[other.name] = other, one
    return swapped


def _of_swapped(term: TermWeight, other: TermWeight) -> WatchFinding:
    name, more = plain(term.name), plain(other.name)
    return finding_of(
        "weight_differs",
        term,
        f"{name} weighs {term.found:.4g} in the gradient, stated {term.stated:g}, and {more} {other.found:.4g}, stated "
        f"{other.stated:g}: the two weights are swapped; give each term its own",
    )


def _of_accumulation(term: TermWeight) -> WatchFinding | None:
    count, found, window = term.sizes.accumulation, term.found, term.accumulated
    if count == 1 or found is None or window is None or term.is_constant:
        return None
    if not _is_off(window, found, term.bound + term.accumulated_bound, scale=max(abs(found), abs(term.stated))):
        return None
    said = f"{plain(term.name)} weighs {window:.4g} in a window of {count} micro-batches and {found:.4g} in one of 1"
    if found != 0.0 and fits(window / found, float(count)):
        what = f"it is not divided by the accumulation; divide it by {count}, as the loss beside it"
    elif found != 0.0 and fits(window / found, 1.0 / count):
        what = f"it is divided by the accumulation twice; divide it by {count} once"
    else:
        what = "divide it by the number of micro-batches that the window really has"
    return finding_of("accumulation_dependent", term, f"{said}, expected the same: {what}")


def _judge_ce(found: float | None, window: float | None, *, accumulation: int) -> WatchFinding | None:
    """Of ce it is told that it is off by the accumulation: what else it is divided by is the loop's own matter."""
    if found is None or window is None or accumulation == 1 or found == 0.0:
        return None
    factor = window / found
    for wanted, what in (
        (
            float(accumulation),
            f"it is not divided by the accumulation; divide it by {accumulation}, or by window tokens",
        ),
        (1.0 / accumulation, f"it is divided by the accumulation twice; divide it by {accumulation} once"),
    ):
        if fits(factor, wanted):
            said = f"ce weighs {window:.4g} in a window of {accumulation} micro-batches and {found:.4g} in one of 1"
            term = TermWeight(
                name="ce", stated=1.0, found=found, accumulated=window, sizes=Sizes(accumulation=accumulation)
            )
            return finding_of("accumulation_dependent", term, f"{said}, expected the same: {what}")
    return None


def _is_off(found: float, wanted: float, bound: float, *, scale: float | None = None) -> bool:
    size = abs(wanted) if scale is None else scale
    return abs(found - wanted) > max(_DIFFERS * size, _SURE * bound)


def _unknown(term: TermWeight, rest: Rest) -> str:
    if term.found is None:
        return (
            f"the weight of {plain(term.name)} is not known: on these micro-batches its gradient is 0, or parallel to "
            "that of ce or another term; hand over more micro-batches with more tokens"
        )
    why = {
        "": "it is little of the gradient; hand over more tokens, or audit a float64 copy of the model",
        "form": _ANOTHER_FORM,
        "precision": "gradients are of low precision; audit a float32 copy of the model, or hand over more tokens",
    }[rest]
    reach = "" if term.stated == 0.0 else f" (it may be {_reach(term)} times that)"
    return f"{_vague(term)}{reach}, too rough to judge: {why}"


def _reach(term: TermWeight) -> str:
    assert term.found is not None
    ends = sorted((term.found + side * term.bound) / term.stated for side in (-1.0, 1.0))
    return f"{max(0.0, ends[0]):.2g} to {ends[1]:.2g}"


def constant_terms(rest: float, absent: Mapping[str, float]) -> frozenset[str]:
    """Which terms a loss has in its value and not in its gradient.

    Args:
        rest: What of the loss's value is neither ce nor a term with a gradient.
        absent: Weight x value of each term that the gradient does not hold.

    Returns:
        The names of those that make up the rest; the fewest that do.
    """
    for count in range(1, len(absent) + 1):
        for names in combinations(absent, count):
            wanted = math.fsum(absent[name] for name in names)
            if wanted != 0.0 and fits(rest, wanted):
                return frozenset(names)
    return frozenset()
