"""`prove`: every case of a training loop, in one process and in two, and what they show together.

    factory -> the loop without a guard, on healthy data: does it train at all?
            -> each case: its trials, here or on a pair of ranks -> `judge` -> a `CaseResult`

Enters: the name of a factory. Leaves: a `Proof`. Invariant: a trial is run once, however many cases ask for it, as far
as memory goes; a loop that hangs, dies or raises fails its case, and the proof ends in bounded time.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Final

import torch

from trimtab.errors import TrimtabError, UsageError
from trimtab.proof.cases import HEALTHY, Case, cases_of
from trimtab.proof.checks import NOT_THROUGH, judge
from trimtab.proof.factory import last_line, load_factory
from trimtab.proof.loop import Factory
from trimtab.proof.pair import Pair, RanksError
from trimtab.proof.trial import Outcome, Trial, run_trial
from trimtab.proven import CaseResult, Proof
from trimtab.run import switched_off

_PROCESSES: Final = (1, 2)

_HOME: Final = "TRIMTAB_HOME"

_MAX_BROKEN: Final = 3
"""Trials of two ranks that may fail: each costs a new pair of processes, and one that hangs its whole time."""

_MEMORY_BYTES: Final = 1 << 28
"""Outcomes that are kept for a case that asks again; those of a small loop all fit."""


def prove(
    factory: str,
    *,
    processes: Sequence[int] = _PROCESSES,
    progress: Callable[[CaseResult], None] | None = None,
) -> Proof:
    """Runs a training loop under planted faults, and says of each whether it was kept out of the update.

    Trains the loop some forty times in one process and some eighty times on two ranks: build it at small size. A loop
    of a hundred parameters takes 16 s of CPU time, both ways. Trials of one process run in this one, on one thread; for
    two, a pair of gloo processes is started that import the factory on their own. Runs that the loop records are not
    listed by `trimtab runs`.

    Args:
        factory: `module:factory`, imported with the current folder on the path: a function `build(guard)` that gives a
            `Loop`.
        processes: 1, 2 or both.
        progress: Called with each case as soon as it is judged.

    Returns:
        What was found, case by case.

    Raises:
        UsageError: An argument makes no sense, or TRIMTAB=off is set.
        TrimtabError: The factory cannot be imported, or the loop cannot be built, or does not train without a guard.

    Example:
        proof = prove("my_loop:build", processes=(1,))
        assert proof.proven, proof.mistakes
    """
    asked = _checked(processes)
    if switched_off():
        raise UsageError("TRIMTAB=off is set in the environment: no guard acts, and nothing can be proven. Unset it.")
    began = time.monotonic()
    results: list[CaseResult] = []
    with _own_home(), _one_thread():
        build = load_factory(factory)
        for num_processes in asked:
            for result in _proven(factory, build, num_processes=num_processes):
                results.append(result)
                if progress is not None:
                    progress(result)
    return Proof(factory=factory, seconds=time.monotonic() - began, cases=tuple(results))


def case_names(*, processes: Sequence[int] = _PROCESSES) -> list[str]:
    """The names of all cases of a proof, in the order in which they run.

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


def _proven(name: str, build: Factory, *, num_processes: int) -> Iterator[CaseResult]:
    """The cases of one number of processes, judged one after the other."""
    with Pair(name) as pair:
        trials = _Trials(pair.run if num_processes > 1 else _alone(build))
        _refuse_unsound(name, trials, where="in two processes" if num_processes > 1 else "in one process")
        for case in cases_of(num_processes):
            yield judge(case, trials.run) if trials.num_broken < _MAX_BROKEN else _not_run(case)


def _refuse_unsound(name: str, trials: _Trials, *, where: str) -> None:
    """Refuses a loop that does not train without a guard: nothing can be compared with it."""
    try:
        outcomes = trials.run(HEALTHY)
    except Exception as error:
        raise TrimtabError(
            f"{name}: the loop cannot be built, or does not train without a guard, {where}: {last_line(error)}. Make "
            "build(None) give a loop that trains on healthy data, then prove it."
        ) from error
    if not all(outcome.is_finite for outcome in outcomes):
        raise TrimtabError(
            f"{name}: without a guard and on healthy data the loop's parameters or moments are not finite, {where}: "
            "nothing can be compared. Make the loop train, at small size, before it is proven."
        )


def _alone(build: Factory) -> Callable[[Trial], Sequence[Outcome]]:
    def run(trial: Trial) -> Sequence[Outcome]:
        try:
            # Its words are nobody's, as those of a loop in two processes are.
            with redirect_stdout(io.StringIO()):
                return (run_trial(build, trial),)
        except SystemExit as error:
            raise TrimtabError(f"the loop ended the process: {last_line(error)}") from error

    return run


class _Trials:
    """Trials of one number of processes, each run once as far as memory goes.

    Attributes:
        num_broken: Trials that ended a pair of processes.
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
            self.num_broken += isinstance(error, RanksError)
            raise
        self._known[trial] = outcomes
        self._num_bytes += _size_bytes(outcomes)
        while self._num_bytes > _MEMORY_BYTES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= _size_bytes(oldest)
        return outcomes


def _size_bytes(outcomes: Sequence[Outcome]) -> int:
    snapshots = [snapshot for outcome in outcomes for snapshot in outcome.snapshots]
    return sum(held.parameters.nbytes + held.moments.nbytes + held.steps.nbytes for held in snapshots)


def _not_run(case: Case) -> CaseResult:
    return case.result(
        "failed",
        check=NOT_THROUGH,
        text=f"It was not run: {_MAX_BROKEN} trials before it hung, died or raised on a rank. Mend those first.",
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for torch: a small loop gains nothing by more, and on a busy machine they wait for one another.

    Measured with a loop of 100 parameters on two busy cores: 4 s instead of 60 s.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
