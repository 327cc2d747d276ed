"""`prove`: every case of a training loop, in one process and in two, and what they show together.

    factory -> the loop without a guard, on healthy data: does it train at all?
            -> each case: its trials, in a process of their own or on two ranks -> `judge` -> a `CaseResult`

Enters: the name of a factory. Leaves: a `Proof`. Invariant: a trial is run once, however many cases ask for it, as far
as memory goes; a loop that hangs, dies or raises fails its case, and the proof ends in bounded time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from trimtab.errors import TrimtabError, UsageError
from trimtab.proof.auditing import judge_audit
from trimtab.proof.cases import HEALTHY, Case, cases_of
from trimtab.proof.checks import NOT_THROUGH, judge
from trimtab.proof.comparison import largest_gap
from trimtab.proof.factory import check_name, last_line
from trimtab.proof.trial import Outcome, Trial
from trimtab.proof.workers import RanksError, Workers
from trimtab.proven import CaseResult, Proof
from trimtab.run import switched_off

_PROCESSES: Final = (1, 2)

_HOME: Final = "TRIMTAB_HOME"

_MAX_BROKEN: Final = 3
"""Trials that may end their processes: each costs new ones, and one that hangs its whole time."""

_MEMORY_BYTES: Final = 1 << 28
"""Outcomes that are kept for a case that asks again; those of a small loop all fit."""


def prove(
    factory: str,
    *,
    processes: Sequence[int] = _PROCESSES,
    progress: Callable[[CaseResult], None] | None = None,
) -> Proof:
    """Runs a training loop under planted faults, and says of each whether it was kept out of the update.

    Trains the loop some sixty times in one process and twice as often on two ranks: build it at small size. A loop
    of a hundred parameters takes 18 s of CPU time, both ways. Trials run in processes that are started for them, import
    the factory on their own, and have one thread each: one process by itself, then two in a gloo group. Runs that the
    loop records are not listed by `trimtab runs`.

    Args:
        factory: `module:factory`, imported with the current folder on the path: a function `build(guard)` that gives a
            `Loop`.
        processes: 1, 2 or both.
        progress: Called with each case as soon as it is judged.

    Returns:
        What was found, case by case.

    Raises:
        UsageError: An argument makes no sense, or TRIMTAB=off is set.
        TrimtabError: The factory cannot be imported, or the loop cannot be built, or does not train without a guard, or
            trains otherwise each time.

    Example:
        proof = prove("my_loop:build", processes=(1,))
        assert proof.proven, proof.mistakes
    """
    asked = _checked(processes)
    check_name(factory)
    if switched_off():
        raise UsageError("TRIMTAB=off is set in the environment: no guard acts, and nothing can be proven. Unset it.")
    began = time.monotonic()
    results: list[CaseResult] = []
    with _own_home():
        for num_processes in asked:
            for result in _proven(factory, num_processes=num_processes):
                results.append(result)
                if progress is not None:
                    progress(result)
    return Proof(factory=factory, seconds=time.monotonic() - began, cases=tuple(results))


def case_names(*, processes: Sequence[int] = _PROCESSES) -> list[str]:
    """The names of all cases of a proof, in the order in which they run.

    One more, "aux weights", is in the proof of a loop that has an `audit`.

    Args:
        processes: As for `prove`.

    Raises:
        UsageError: Likewise.
    """
    return [case.name for num_processes in _checked(processes) for case in cases_of(num_processes)]


def _checked(processes: Sequence[int]) -> tuple[int, ...]:
    if not processes or not set(processes) <= set(_PROCESSES):
        raise UsageError(f"processes={processes!r} makes no sense: expected (1,), (2,) or (1, 2).")
    return tuple(sorted(set(processes)))


def _proven(name: str, *, num_processes: int) -> Iterator[CaseResult]:
    """The cases of one number of processes, judged one after the other."""
    with Workers(name, num_ranks=num_processes) as workers:
        trials = _Trials(workers.run)
        _refuse_unsound(name, trials, where="in two processes" if num_processes > 1 else "in one process")
        for case in cases_of(num_processes):
            yield judge(case, trials.run) if trials.num_broken < _MAX_BROKEN else _not_run(case)
        # The weights of a loss are those of one process: ranks change nothing of what is handed to backward.
        if num_processes == 1 and (audited := judge_audit(trials.run)) is not None:
            yield audited


def _refuse_unsound(name: str, trials: _Trials, *, where: str) -> None:
    """Refuses a loop that does not train without a guard, or otherwise each time: nothing can be compared with it."""
    try:
        again = trials.run_anew(HEALTHY)
        outcomes = trials.run(HEALTHY)
    except Exception as error:
        if isinstance(error, RanksError) and error.is_unloadable:
            raise TrimtabError(str(error)) from error
        raise TrimtabError(
            f"{name}: the loop cannot be built, or does not train without a guard, {where}: {last_line(error)}. Make "
            "build(None) give a loop that trains on healthy data, then prove it."
        ) from error
    if not all(outcome.is_finite for outcome in outcomes):
        raise TrimtabError(
            f"{name}: without a guard and on healthy data the loop's parameters or moments are not finite, {where}: "
            "nothing can be compared. Make the loop train, at small size, before it is proven."
        )
    unlike = _unlike(again, outcomes)
    if unlike is not None:
        raise TrimtabError(
            f"{name}: the factory gives another loop each time, {where}: of two trainings by build(None), {unlike}. "
            "Seed its data, and build everything anew in it: model, optimizer, data."
        )


def _unlike(outcomes: Sequence[Outcome], others: Sequence[Outcome]) -> str | None:
    """In what two trainings differ that ought to be one; None where in nothing."""
    for outcome, other in zip(outcomes, others, strict=True):
        if list(outcome.num_micros) != list(other.num_micros):
            return f"the windows of one have {outcome.num_micros} micro-batches, of the other {other.num_micros}"
        for window, (one, two) in enumerate(zip(outcome.snapshots, other.snapshots, strict=True)):
            if one.parameters.shape != two.parameters.shape:
                return f"one has {one.parameters.size} parameters, the other {two.parameters.size}"
            if (one.digest, one.buffers) != (two.digest, two.buffers):
                when = f"after window {window}" if window else "before the first window"
                gap = largest_gap(one.parameters, two.parameters)
                return f"the parameters differ by up to {gap:.3e} {when}, expected 0"
    return None


class _Trials:
    """Trials of one number of processes, each run once as far as memory goes.

    Attributes:
        num_broken: Trials that ended their processes.
    """

    def __init__(self, run: Callable[[Trial], Sequence[Outcome]]) -> None:
        self._run = run
        self._known: OrderedDict[Trial, Sequence[Outcome]] = OrderedDict()
        self._errors: dict[Trial, Exception] = {}
        self._num_bytes = 0
        self.num_broken = 0

    def run(self, trial: Trial) -> Sequence[Outcome]:
        """What came of a trial on each rank, or the error that it raised."""
        if trial in self._errors:
            raise self._errors[trial]
        if trial in self._known:
            self._known.move_to_end(trial)
            return self._known[trial]
        try:
            outcomes = self._run(trial)
        except Exception as error:
            self._errors[trial] = error
            self.num_broken += isinstance(error, RanksError) and error.is_over
            raise
        self._known[trial] = outcomes
        self._num_bytes += _size_bytes(outcomes)
        while self._num_bytes > _MEMORY_BYTES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= _size_bytes(oldest)
        return outcomes

    def run_anew(self, trial: Trial) -> Sequence[Outcome]:
        """The same, whatever is known of it; nothing is remembered."""
        return self._run(trial)


def _size_bytes(outcomes: Sequence[Outcome]) -> int:
    snapshots = [snapshot for outcome in outcomes for snapshot in outcome.snapshots]
    return sum(held.parameters.nbytes + held.moments.nbytes + held.steps.nbytes for held in snapshots)


def _not_run(case: Case) -> CaseResult:
    return case.result(
        "failed",
        check=NOT_THROUGH,
        text=f"It was not run: {_MAX_BROKEN} trials before it hung, died, or raised on a rank. Mend those first.",
    )


@contextmanager
def _own_home() -> Iterator[None]:
    """A registry of runs that is gone afterwards: the loop may record, and its runs are nobody's."""
    before = os.environ.get(_HOME)
    with tempfile.TemporaryDirectory(prefix="trimtab-prove-home-") as folder:
        os.environ[_HOME] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[_HOME]
            else:
                os.environ[_HOME] = before
