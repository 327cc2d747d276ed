"""What a proof of a training loop finds: plain values, made by `trimtab.proof`, drawn by a report.

Enters: nothing. Leaves: `Proof`, made of one `CaseResult` a case. Standard library only, and below both halves: a
report draws these values and knows nothing of what trains. Invariant: a proof is proven if no case of it failed and one
at least was proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trimtab.values import json_number

CaseOutcome = Literal["proven", "failed", "not_applicable"]
"""What became of a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What one training under one planted fault, or under none, has shown.

    Attributes:
        case: Its name, of which a proof has one: fault, place and processes.
        fault: What was planted, a name of the catalogue; None: nothing.
        place: Which micro-batch of the window: "first", "middle", "last", "all"; None where nothing was planted.
        processes: How many processes trained, 1 or 2.
        ranks: Which of them met the fault, ascending; none where nothing was planted.
        outcome: Whether every check held; "not_applicable": the loop has nothing to plant this in.
        check: The check that failed first; None where none did.
        found: The number that this check found; None where it has none.
        expected: The number that it expected.
        mistake: Which mistake of the wiring does this, by name; None where none is known to, and where nothing failed.
        text: All of it in a sentence or two: what was compared, what was found, what to do.
    """

    case: str
    fault: str | None
    place: str | None
    processes: int
    ranks: tuple[int, ...]
    outcome: CaseOutcome
    check: str | None = None
    found: float | None = None
    expected: float | None = None
    mistake: str | None = None
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `prove --json`; numbers that are not finite are spelled."""
        return {
            "case": self.case,
            "fault": self.fault,
            "place": self.place,
            "processes": self.processes,
            "ranks": list(self.ranks),
            "outcome": self.outcome,
            "check": self.check,
            "found": json_number(self.found),
            "expected": json_number(self.expected),
            "mistake": self.mistake,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the cases of a training loop have shown.

    Attributes:
        factory: The loop's factory, `module:factory`.
        seconds: How long it took.
        cases: Every case, in the order in which they ran.
    """

    factory: str
    seconds: float
    cases: tuple[CaseResult, ...]

    @property
    def proven(self) -> bool:
        """Whether no case failed, and one at least was proven."""
        return not self.failed and any(case.outcome == "proven" for case in self.cases)

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(case for case in self.cases if case.outcome == "failed")

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes that failed cases name, each once, in their order."""
        return tuple(dict.fromkeys(case.mistake for case in self.failed if case.mistake is not None))

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `prove --json`; strict JSON."""
        return {
            "version": 1,
            "factory": self.factory,
            "proven": self.proven,
            "seconds": round(self.seconds, 3),
            "cases": [case.to_dict() for case in self.cases],
            "mistakes": list(self.mistakes),
        }
