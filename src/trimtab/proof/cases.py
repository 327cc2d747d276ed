"""`Case`: one thing that is to be shown of a loop, and the trials that show it.

Enters: for how many processes. Leaves: cases, and of each the trials under a guard, the oracles, and the trials that
tell one mistake from another. All are data: the same trial asked for twice is equal, so that it need run once only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.proof.faults import FAULTS, FAULTY_WINDOW, FINITE_SPIKE, NO_TOKENS, Fault, Place, Plant
from trimtab.proof.trial import GuardSetting, Trial
from trimtab.proven import CaseOutcome, CaseResult

HEALTHY = Trial(guard="none")
"""The loop as it is without any guard."""

_WHERE: Final[dict[Place | None, str]] = {"all": "all micro-batches", "two": "first and last micro-batch"}

LARGER = 10.0
"""How much larger a spike is in the trial that shows whether its size matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is shown: one fault at one place on some ranks, or that a guard changes nothing where there is none.

    Attributes:
        guard: What the loop is built with.
        fault: Name of the fault; None: nothing is planted.
        place: Of the micro-batches that have it; None with `fault`.
        processes: 1 or 2.
        ranks: Those on which it is planted.
        sign: Which way a spike points: 1.0 or -1.0, so that the loss rises by it; 0.0: neither way, and none follows a
            fault that blinds.
        skipped_tokens: Whether the loop's guard counts the tokens of what it skips.
    """

    guard: GuardSetting
    processes: int
    fault: str | None = None
    place: Place | None = None
    ranks: tuple[int, ...] = (0,)
    sign: float = 1.0
    skipped_tokens: str = "counted"

    @property
    def name(self) -> str:
        """What reports and tests call it; unlike any other's."""
        if self.fault is None:
            what = f"guard {self.guard}, no fault"
        else:
            where = _WHERE.get(self.place, f"{self.place} micro-batch")
            what = f"{self.fault}, {where}"
            if self.guard != "on":
                what = f"guard {self.guard}, {what}"
        if self.processes == 1:
            return what
        if self.fault is None:
            return f"{what}, {self.processes} processes"
        who = f"{self.processes} ranks" if self.is_on_all_ranks else f"rank {self.ranks[0]} of {self.processes}"
        return f"{what}, {who}"

    @property
    def is_on_all_ranks(self) -> bool:
        """Whether every rank has the fault."""
        return len(self.ranks) == self.processes

    @property
    def every_rank(self) -> tuple[int, ...]:
        """All ranks of the trial."""
        return tuple(range(self.processes))

    @property
    def planted(self) -> Fault:
        """The fault; only of a case that has one."""
        assert self.fault is not None, "nothing is planted in this case"
        return FAULTS[self.fault]

    @property
    def plant(self) -> Plant:
        """What is planted in the faulty window; only of a case with a fault."""
        assert self.place is not None, "nothing is planted in this case"
        return Plant(window=FAULTY_WINDOW, place=self.place, ranks=self.ranks, fault=self.fault, size=self.sign or 1.0)

    @property
    def has_spike(self) -> bool:
        """Whether a finite spike is part of what is planted."""
        return self.fault is not None and (self.planted.noise > 0.0 or self.planted.blinds)

    @property
    def follow_up(self) -> Plant | None:
        """The finite spike in the window after a fault that would make a guard blind."""
        if not self.planted.blinds or self.sign == 0.0:
            return None
        return Plant(window=FAULTY_WINDOW + 1, place="first", ranks=self.ranks, fault=FINITE_SPIKE, size=self.sign)

    @property
    def planted_windows(self) -> tuple[int, ...]:
        """The windows that are not healthy."""
        return (FAULTY_WINDOW,) if self.follow_up is None else (FAULTY_WINDOW, FAULTY_WINDOW + 1)

    def with_fault(self, *, guard: GuardSetting, size: float = 1.0) -> Trial:
        """The loop with everything planted, and nothing of the prover's beside."""
        return Trial(guard=guard, plants=self._with_follow_up(replace(self.plant, size=size * self.plant.size)))

    def seen_only(self, *, fault: str, size: float) -> Trial:
        """The loop without a guard, which sees a fault and whose update does not: what does its loss become by it?"""
        return Trial(guard="none", plants=(replace(self.plant, fault=fault, size=size, left_out=True),))

    def without_loss(self, *, dropped: bool = True, ranks: tuple[int, ...] | None = None) -> Trial:
        """The oracle: the loop without a guard, on healthy data, whose update never sees the chosen micro-batches.

        Args:
            dropped: Whether the step of a window that is left out whole is dropped, as it must be.
            ranks: Ranks on which they are left out; None: all, for a skip is one on every rank.
        """
        everywhere = self.every_rank if ranks is None else ranks
        drops = dropped and self.place == "all"
        plant = replace(self.plant, ranks=everywhere, fault=self._left_out, left_out=True, dropped=drops, size=1.0)
        return Trial(guard="none", plants=self._with_follow_up(plant, left_out_on=everywhere))

    @property
    def _left_out(self) -> str | None:
        """What beside the gradients of its output is taken from a micro-batch that is left out."""
        return NO_TOKENS if self.skipped_tokens == "removed" else None

    def with_window_dropped(self) -> Trial:
        """The loop without a guard, on healthy data, that does not step in the faulty window."""
        plant = replace(self.plant, ranks=self.every_rank, fault=None, dropped=True, size=1.0)
        return Trial(guard="none", plants=(plant,))

    def with_blind_guard(self) -> Trial:
        """The oracle of a guard that skipped the fault and was blind to the spike after it."""
        follow_up = self.follow_up
        assert follow_up is not None, "nothing follows this fault"
        drops = self.place == "all"
        plant = replace(self.plant, ranks=self.every_rank, fault=self._left_out, left_out=True, dropped=drops, size=1.0)
        return Trial(guard="none", plants=(plant, follow_up))

    def with_term_kept(self, term: str) -> Trial:
        """The loop with the fault and without a guard, whose update sees one tensor of the model's output only."""
        plants = [replace(self.plant, left_out=True, but_for=term)]
        others = tuple(rank for rank in self.every_rank if rank not in self.ranks)
        if others:
            plants.append(replace(plants[0], ranks=others, fault=None))
        return Trial(guard="none", plants=tuple(plants))

    def without_tokens(self) -> Iterator[Trial]:
        """The oracles of a micro-batch without supervised tokens, the best first: one is right if it is finite.

        It is kept and adds nothing. Where the loop's loss of no tokens is not finite (0 / 0), it adds nothing because
        it is left out: by a guard that is told the tokens on the ranks that have none, by one that is not on all.
        """
        is_empty = self.place == "all" and self.is_on_all_ranks
        plant = replace(self.plant, dropped=is_empty)
        yield Trial(guard="none", plants=(plant,))
        plant = replace(plant, left_out=True)
        yield Trial(guard="none", plants=(plant,))
        others = tuple(rank for rank in self.every_rank if rank not in self.ranks)
        if others:
            drops = self.place == "all"
            plants = (replace(plant, dropped=drops), replace(plant, ranks=others, fault=None, dropped=drops))
            yield Trial(guard="none", plants=plants)

    def under(self, fault: str, *, place: Place | None = None) -> Case:
        """The same ranks with another fault.

        Args:
            fault: Its name.
            place: None: the same one.
        """
        return replace(self, fault=fault, place=place if place is not None else self.place)

    def result(
        self,
        outcome: CaseOutcome,
        *,
        check: str | None = None,
        found: float | None = None,
        expected: float | None = None,
        mistake: str | None = None,
        text: str,
    ) -> CaseResult:
        """What became of this case; the arguments are those of `CaseResult`."""
        return CaseResult(
            case=self.name,
            fault=self.fault,
            place=self.place,
            processes=self.processes,
            ranks=self.ranks if self.fault is not None else (),
            outcome=outcome,
            check=check,
            found=found,
            expected=expected,
            mistake=mistake,
            text=text,
        )

    def _with_follow_up(self, plant: Plant, *, left_out_on: tuple[int, ...] | None = None) -> tuple[Plant, ...]:
        follow_up = self.follow_up
        if follow_up is None:
            return (plant,)
        if left_out_on is not None:
            follow_up = replace(follow_up, ranks=left_out_on, fault=self._left_out, left_out=True, size=1.0)
        return (plant, follow_up)


def cases_of(processes: int) -> list[Case]:
    """All cases for a number of processes.

    Args:
        processes: 1, or 2: then each fault is planted on the last rank alone, and on all.
    """
    cases = [Case(guard="off", processes=processes), Case(guard="on", processes=processes)]
    every_rank = tuple(range(processes))
    hit = [every_rank] if processes == 1 else [every_rank[-1:], every_rank]
    cases += [
        Case(guard="on", processes=processes, fault=fault.name, place=place, ranks=ranks)
        for ranks in hit
        for fault in FAULTS.values()
        for place in fault.places
    ]
    # The settings are seen to arrive: under these the same spike is kept.
    cases.append(Case(guard="lenient", processes=processes, fault=FINITE_SPIKE, place="last", ranks=every_rank))
    return cases
