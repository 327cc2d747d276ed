"""What an audit of auxiliary weights measures, and what it finds: plain values.

Enters: nothing. Leaves: `TermWeight`, `AuxAudit`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.rules.aux.factors import Sizes
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import FindingKind, WatchFinding

KNOWN: Final = 0.1
"""Share of a weight that the measurement may leave open before it is said that it is not known. A weight 1.5 times off
must not pass, and where something else is in the gradient a weight was found off by up to its bound."""

_ROUNDING: Final = 1e-6
"""Share of a stated weight that is nothing: what float32 leaves of a projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWeight:
    """One auxiliary term: what is said of it, and what was measured.

    Attributes:
        name: Its name.
        stated: The weight it is meant to have.
        found: The weight it has in the gradient at accumulation 1; None where it cannot be known.
        bound: How far `found` may be off.
        noticed: The weight with which it would be a thousandth of the gradient: where 0 is stated, a bound below is
            nothing.
        accumulated: The same at `sizes.accumulation`, of a whole window.
        accumulated_bound: How far that may be off.
        value: The term as defined, mean over the micro-batches; None where it is not known.
        logged: What the loop's own code calls its value; None where it names none.
        logged_window: What it logs for a whole window; likewise.
        is_constant: Whether the loss's value holds the term and its gradient does not.
        other_form: Another definition that the gradient fits far better, in words; empty: the stated one.
        in_ce: With which weight what the loop calls ce holds it already; `found` has that in it. 0: not at all.
        sizes: Of the model and the loop.
    """

    name: str
    stated: float
    found: float | None
    bound: float = 0.0
    noticed: float = 0.0
    accumulated: float | None = None
    accumulated_bound: float = 0.0
    value: float | None = None
    logged: float | None = None
    logged_window: float | None = None
    is_constant: bool = False
    other_form: str = ""
    in_ce: float = 0.0
    sizes: Sizes = field(default_factory=lambda: Sizes(accumulation=1))

    @property
    def is_known(self) -> bool:
        """Whether the measurement says what it weighs."""
        if self.found is None:
            return False
        return self.bound <= (KNOWN * abs(self.stated) if self.stated != 0.0 else self.noticed)

    @property
    def fits_form(self) -> bool:
        """Whether the gradient is so near to the term as stated that a factor between the two means something."""
        return self.found is not None and self.bound <= KNOWN * abs(self.found)

    @property
    def is_absent(self) -> bool:
        """Whether it is known that the gradient holds nothing of it."""
        if self.found is None or self.bound > KNOWN * abs(self.stated):
            return False
        return abs(self.found) <= max(_ROUNDING * abs(self.stated), self.bound)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, JSON-ready."""
        return {
            "name": self.name,
            "stated": json_number(self.stated),
            "found": json_number(self.found),
            "bound": json_number(self.bound),
            "accumulated": json_number(self.accumulated),
            "accumulation": self.sizes.accumulation,
            "value": json_number(self.value),
            "logged": json_number(self.logged),
            "logged_window": json_number(self.logged_window),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxAudit:
    """What an audit of auxiliary weights found.

    Attributes:
        weights: Each term that was asked about; a factor on the whole loss, ce and terms alike, is in none.
        findings: What is wrong, a sentence each.
        notes: What could not be known and why, and what else was seen, a sentence each.
        is_explained: Whether ce and the terms make up the gradient: both are in it, on one scale, and nothing else.
    """

    weights: tuple[TermWeight, ...]
    findings: tuple[WatchFinding, ...] = ()
    notes: tuple[str, ...] = ()
    is_explained: bool = True

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found, nothing unknown is in the gradient, and every term's weight could be known."""
        return not self.findings and self.is_explained and all(term.is_known for term in self.weights)

    def to_dict(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return {
            "weights": [term.to_dict() for term in self.weights],
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
            "is_explained": self.is_explained,
        }


def finding_of(kind: FindingKind, term: TermWeight, text: str, *, logged: float | None = None) -> WatchFinding:
    """A finding about a term, with its numbers.

    Args:
        kind: Which.
        term: What was measured of it.
        text: The sentence.
        logged: The number that it is about, where that is one that is logged.
    """
    figures = {key: value for key, value in term.to_dict().items() if value is not None and key != "name"}
    if logged is not None:
        figures["logged"] = json_number(logged)
    return WatchFinding(kind=kind, severity="warning", step=0, text=text, figures={"term": plain(term.name), **figures})


def told(audit: AuxAudit) -> str:
    """The whole of an audit in a line: its findings, or the weights as they were found.

    Args:
        audit: The audit.
    """
    if audit.findings:
        return "; ".join(finding.text for finding in audit.findings)
    if not audit.weights:
        return "no term was asked about"
    return listed(_weight_in_words(term) for term in audit.weights)


def _weight_in_words(term: TermWeight) -> str:
    found = "nobody knows what" if term.found is None else f"{term.found:.4g}"
    return f"{plain(term.name)} weighs {found} (stated {term.stated:g})"
