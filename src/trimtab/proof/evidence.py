"""What stands between a case's trials and its checks: outcomes side by side, and a check that failed.

Enters: outcomes. Leaves: the same, by what they are evidence of. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trimtab.proof.cases import Case
from trimtab.proof.comparison import Distance, distance
from trimtab.proof.faults import FAULTY_WINDOW, micros_at
from trimtab.proof.mistakes import Mistake
from trimtab.proof.trial import Outcome, Trial

RunTrial = Callable[[Trial], Sequence[Outcome]]
"""Runs a trial on as many processes as its case has; gives the outcome of each rank."""


class Failed(NamedTuple):
    """A check that failed.

    Attributes:
        found: What was found, a number.
        expected: What was expected.
        text: Both in words, with their units.
    """

    found: float
    expected: float
    text: str


class Named(NamedTuple):
    """A mistake that explains why a check failed.

    Attributes:
        mistake: Its entry in the catalogue; None where none fits.
        found: The number that shows it.
        expected: What it should have been.
        text: What is wrong, with both numbers.
    """

    mistake: Mistake | None
    found: float
    expected: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A case's trials.

    Attributes:
        case: The case.
        found: The trial under the guard.
        oracle: The trial that it must equal; of several that would be right, the nearest.
        run: Runs a further trial of this case.
        fails_as: How another case fails; None where it is proven. For what two cases together tell.
    """

    case: Case
    found: Sequence[Outcome]
    oracle: Sequence[Outcome]
    run: RunTrial
    fails_as: Callable[[Case], Named | None]

    @property
    def num_planted(self) -> int:
        """Micro-batches whose skip is expected, those of the next window among them."""
        case = self.case
        if case.fault is None or case.place is None or case.guard == "lenient":
            return 0
        num_micros = self.found[0].num_micros[FAULTY_WINDOW]
        return len(micros_at(case.place, num_micros=num_micros)) + (case.follow_up is not None)

    @property
    def counted(self) -> list[tuple[Outcome, int]]:
        """What each rank says it has skipped; empty where none says."""
        return [(outcome, outcome.num_skipped) for outcome in self.found if outcome.num_skipped is not None]

    @property
    def counts(self) -> list[int]:
        """The same, without the ranks."""
        return [count for _, count in self.counted]

    def of_rank(self, outcome: Outcome) -> str:
        """Where an outcome is of one rank among several: of which, in brackets."""
        return f" (rank {outcome.rank})" if self.case.processes > 1 else ""

    def apart(self, trial: Sequence[Outcome], *, window: int = FAULTY_WINDOW) -> Distance:
        """How far the trial under the guard is from another after a window."""
        return distance(self.found, trial, window=window, since=FAULTY_WINDOW)

    def equals(self, trial: Trial, *, window: int = FAULTY_WINDOW) -> bool:
        """Whether a further trial, run for this question, ends the window where the one under the guard does."""
        try:
            other = self.run(trial)
        except Exception:  # noqa: BLE001 - a loop that fails there is not the one that was found
            return False
        return self.apart(other, window=window).is_near
