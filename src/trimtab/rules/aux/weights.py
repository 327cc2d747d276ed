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
from dataclasses import replace
from itertools import combinations
from typing import Final

from trimtab.rules.aux.factors import Sizes, conventions, fits, is_power_of_ten
from trimtab.rules.aux.values import AuxAudit, TermWeight
from trimtab.text import plain
from trimtab.values import json_number
from trimtab.watched import FindingKind, WatchFinding

_DIFFERS: Final = 0.05
"""Share of a stated weight that the real one may be off: a weight is tuned by factors (1e-3 killed a router that 1e-4
kept), and the smallest factor between conventions is 2."""

_SURE: Final = 2.0
"""Bounds that a weight must be off by: in half precision the terms' own gradients are rounded too, and weights were
found off by 0.8 bounds (a tiny Qwen3-MoE in bfloat16)."""

_ONE_PLACE: Final = "multiply by the weight once, at one place, and use a term without a factor of its own"


def judge_weights(
    terms: Sequence[TermWeight],
    *,
    ce: float | None = None,
    ce_accumulated: float | None = None,
    total_equals_ce: bool = False,
    notes: Sequence[str] = (),
) -> AuxAudit:
    """Judges what was measured.

    Args:
        terms: The terms.
        ce: Weight of ce in the gradient at accumulation 1, mean over micro-batches; None where it is not known.
        ce_accumulated: The same of a whole window.
        total_equals_ce: Whether the gradient of the loss is that of ce and nothing else.
        notes: What else could not be measured.

    Returns:
        The audit.
    """
    findings: list[WatchFinding] = []
    said = list(notes)
    for term in terms:
        findings += judge_weight(term, total_equals_ce=total_equals_ce)
        if not term.is_known and not term.is_constant:
            said.append(_unknown(term))
    count = terms[0].sizes.accumulation if terms else 1
    if (of_ce := _judge_ce(ce, ce_accumulated, accumulation=count)) is not None:
        findings.append(of_ce)
    return AuxAudit(weights=tuple(terms), findings=tuple(findings), notes=tuple(said))


def judge_weight(term: TermWeight, *, total_equals_ce: bool = False) -> list[WatchFinding]:
    """The findings of one term.

    Args:
        term: What was measured of it.
        total_equals_ce: As for `judge_weights`.
    """
    findings = []
    if (of_weight := _of_weight(term, total_equals_ce=total_equals_ce)) is not None:
        findings.append(of_weight)
    if (of_window := _of_accumulation(term)) is not None:
        findings.append(of_window)
    for where, logged, is_window in (
        ("the logged value", term.logged, False),
        ("the logged value of a window", term.logged_window, True),
    ):
        if logged is not None and (of_log := _of_log(term, logged, where=where, is_window=is_window)) is not None:
            findings.append(of_log)
    return findings


def _of_weight(term: TermWeight, *, total_equals_ce: bool) -> WatchFinding | None:
    name, stated = plain(term.name), term.stated
    if term.is_constant:
        return _finding(
            "constant_aux",
            term,
            f"{name} is in the loss's value with its weight {stated:g}, and its gradient is 0: it is detached, or made "
            "of what argmax or topk gave alone; compute it from the router's logits, without detach, item or no_grad",
        )
    found = term.found
    if found is None or (term.other_form == "" and not _is_off(found, stated, term.bound)):
        return None
    said = f"{name} weighs {found:.4g} in the gradient, stated {stated:g}"
    if term.other_form:
        return _finding(
            "weight_differs",
            term,
            f"{name} is in the gradient as {term.other_form}, and weighs {found:.4g}; stated is {stated:g}, of another "
            "form, which is not the same number: state the weight of the loss's form, or change the loss",
        )
    if stated == 0.0:
        return _finding(
            "weight_differs", term, f"{said}: the loss holds a term that is said to be off. Find who adds it"
        )
    if term.is_absent:
        why = "the loss is ce alone" if total_equals_ce else "the loss does not hold it"
        return _finding("weight_not_applied", term, f"{said}: {why}; add weight x term to what backward is called on")
    factor = found / stated
    if stated != 1.0 and fits(found, stated * stated):
        text = f"{said}: it is the weight squared ({stated:g} x {stated:g} = {stated * stated:g}), applied twice"
        return _finding("weight_applied_twice", term, f"{text}; {_ONE_PLACE}")
    named = conventions(factor, sizes=term.sizes)
    if is_power_of_ten(factor):
        also = f", or the factor is {' or '.join(named)}" if named else ""
        text = f"{said}: a factor of {factor:.3g} stands inside the term beside the weight outside{also}"
        return _finding("weight_applied_twice", term, f"{text}; {_ONE_PLACE}")
    if named:
        text = f"{said}, a factor of {' or '.join(named)}"
        remedy = "state the weight that goes with the form that the loss has, or change the loss"
        return _finding("weight_differs", term, f"{text}; {remedy}")
    return _finding(
        "weight_differs", term, f"{said}, {factor:.4g} times as much, which no known convention explains; {_ONE_PLACE}"
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
    return _finding("accumulation_dependent", term, f"{said}, expected the same: {what}")


def _of_log(term: TermWeight, logged: float, *, where: str, is_window: bool) -> WatchFinding | None:
    """A logged value is right where it is the term, or the term times its weight: both are usual."""
    real = term.value
    if real is None or not math.isfinite(real) or real == 0.0 or not math.isfinite(logged):
        return None
    if fits(logged, real) or fits(logged, term.stated * real):
        return None
    factor = logged / real
    if not is_power_of_ten(factor) and term.found is not None and fits(factor * term.stated, term.found):
        return None  # what is logged is what is in the loss, and the finding about its weight tells the factor
    count = term.sizes.accumulation
    said = f"{where} of {plain(term.name)} is {logged:.4g}, the term is {real:.4g}"
    sizes = term.sizes if is_window else replace(term.sizes, accumulation=1)
    if is_window and any(fits(logged, count * right) for right in (real, term.stated * real)):
        what = f"it is the sum over {count} micro-batches; log their mean"
    elif term.stated not in (0.0, 1.0) and fits(factor, term.stated**2):
        what = f"the weight squared ({term.stated:g} x {term.stated:g}) is in it; log the term, or weight x term"
    elif is_power_of_ten(factor):
        what = f"logged / real = {factor:.3g}; log it without that factor, or compare trends within one scale only"
    elif named := conventions(factor, sizes=sizes):
        what = f"a factor of {' or '.join(named)}; say so in the log, or log the term as it is stated"
    else:
        what = f"logged / real = {factor:.4g}; log the term of the loss, or compare trends within one scale only"
    return _finding("logged_differs", term, f"{said}: {what}", logged=logged)


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
            return _finding("accumulation_dependent", term, f"{said}, expected the same: {what}")
    return None


def _is_off(found: float, wanted: float, bound: float, *, scale: float | None = None) -> bool:
    size = abs(wanted) if scale is None else scale
    return abs(found - wanted) > max(_DIFFERS * size, _SURE * bound)


def _unknown(term: TermWeight) -> str:
    if term.found is None:
        return (
            f"the weight of {plain(term.name)} is not known: on these micro-batches its gradient is 0, or parallel to "
            "that of ce or another term; hand over more micro-batches with more tokens"
        )
    return (
        f"the weight of {plain(term.name)} is {term.found:.4g} to within {term.bound:.2g}, stated {term.stated:g}, too "
        "rough to judge: something else is in the loss, padding is and mask= is not given, or gradients are of low "
        "precision; name further terms in weights=, pass mask=, or audit a float32 copy of the model"
    )


def _finding(kind: FindingKind, term: TermWeight, text: str, *, logged: float | None = None) -> WatchFinding:
    figures = {key: value for key, value in term.to_dict().items() if value is not None and key != "name"}
    if logged is not None:
        figures["logged"] = json_number(logged)
    return WatchFinding(kind=kind, severity="warning", step=0, text=text, figures={"term": plain(term.name), **figures})


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
