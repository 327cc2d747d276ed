"""What an audit of auxiliary weights measures, and what it finds: plain values.

Enters: nothing. Leaves: `TermWeight`, `AuxAudit`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.rules.aux.factors import Sizes
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import WatchFinding

_KNOWN: Final = 0.5
"""Share of a stated weight that the measurement may leave open before it is said that nothing is known."""

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
        accumulated: The same at `sizes.accumulation`, of a whole window.
        accumulated_bound: How far that may be off.
        value: The term as defined, mean over the micro-batches; None where it is not known.
        logged: What the loop's own code calls its value; None where it names none.
        logged_window: What it logs for a whole window; likewise.
        is_constant: Whether the loss's value holds the term and its gradient does not.
        other_form: Another definition that the gradient fits far better, in words; empty: the stated one.
        sizes: Of the model and the loop.
    """

    name: str
    stated: float
    found: float | None
    bound: float = 0.0
    accumulated: float | None = None
    accumulated_bound: float = 0.0
    value: float | None = None
    logged: float | None = None
    logged_window: float | None = None
    is_constant: bool = False
    other_form: str = ""
    sizes: Sizes = field(default_factory=lambda: Sizes(accumulation=1))

    @property
    def is_known(self) -> bool:
        """Whether the measurement says what it weighs."""
        if self.found is None:
            return False
        return self.stated == 0.0 or self.bound <= _KNOWN * max(abs(self.stated), abs(self.found))

    @property
    def is_absent(self) -> bool:
        """Whether it is known that the gradient holds nothing of it."""
        if self.found is None or self.bound > _KNOWN * abs(self.stated):
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
        weights: Each term that was asked about.
        findings: What is wrong, a sentence each.
        notes: What could not be known and why, a sentence each.
    """

    weights: tuple[TermWeight, ...]
    findings: tuple[WatchFinding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found, and the weight of every term could be known."""
        return not self.findings and all(term.is_known for term in self.weights)

    def to_dict(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return {
            "weights": [term.to_dict() for term in self.weights],
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }


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
