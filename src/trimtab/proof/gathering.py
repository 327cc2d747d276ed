"""The trials of a case: what is planted is fitted to the loop, and each training that the checks look at is run.

Enters: a case, and a way to run its trials. Leaves: `Evidence`; or why the case cannot be made with this loop.
Invariant: a guard is asked for a skip only where the loop's own loss, seen without a guard, rises so far that it must
be one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trimtab.errors import TrimtabError, UsageError
from trimtab.proof.cases import HEALTHY, Case
from trimtab.proof.comparison import distance
from trimtab.proof.evidence import Evidence, Named, RunTrial
from trimtab.proof.factory import last_line
from trimtab.proof.faults import FAULTY_WINDOW, FINITE_SPIKE, micros_at
from trimtab.proof.trial import Outcome, Trial

RISE: Final = 10.0
"""How many times the largest healthy loss a planted spike must be: the multiplier of the guard."""


class NotApplicableError(Exception):
    """The case cannot be made with this loop; says why."""


class GuardedLoopError(Exception):
    """The loop under a guard did not come to its end; the cause says why."""


def gather(case: Case, run: RunTrial, *, fails_as: Callable[[Case], Named | None]) -> Evidence:
    """The case's trials: first the oracles, then the one under the guard.

    Args:
        case: What is to be shown.
        run: Runs a trial on as many processes as the case has.
        fails_as: How another case fails.

    Raises:
        NotApplicableError: The case cannot be made with this loop.
        GuardedLoopError: The loop under the guard does not come to its end.
        TrimtabError: The loop fails without a guard too, on healthy data, or does not train.
    """
    if case.fault is not None:
        case = _fitted(case, run)
    oracles = _oracles(case, run)
    found = guarded(case, run)
    oracle = min(oracles, key=lambda oracle: _length(found, oracle))
    return Evidence(case=case, found=found, oracle=oracle, run=run, fails_as=fails_as)


def _fitted(case: Case, run: RunTrial) -> Case:
    """The case with a spike by which the loop's loss rises, and the way in which it counts what it skips.

    Raises:
        NotApplicableError: The case is one of a spike, and the loss rises by none.
    """
    healthy = healthy_outcomes(run)
    case = replace(case, skipped_tokens=healthy[0].skipped_tokens)
    if not case.has_spike:
        return case
    case = _with_sign(case, healthy, run)
    if not case.planted.noise and np.isfinite(_planted(case, _seen(case, run, fault=case.planted.name))).all():
        raise NotApplicableError("the loss stays finite whatever the model's output is")
    return case


def _with_sign(case: Case, healthy: Sequence[Outcome], run: RunTrial) -> Case:
    reasons = []
    for sign in (1.0, -1.0):
        reason = _why_no_spike(case, healthy, run, sign=sign)
        if reason is None:
            return replace(case, sign=sign)
        reasons.append(reason)
    if case.planted.noise:
        raise NotApplicableError(reasons[0])
    return replace(case, sign=0.0)


def _why_no_spike(case: Case, healthy: Sequence[Outcome], run: RunTrial, *, sign: float) -> str | None:
    """Why a guard need not skip the planted output: the loop's loss, seen without a guard, does not rise enough."""
    try:
        spoiled = _seen(case, run, fault=FINITE_SPIKE, size=sign)
    except NotApplicableError as reason:
        return str(reason)
    usual = _over_ranks([np.concatenate(outcome.backed[: FAULTY_WINDOW + 1]) for outcome in healthy])
    risen = _planted(case, spoiled)
    if np.isnan(usual).any() or np.isnan(risen).any():
        return None  # nobody saw the loss: the guard is asked
    if usual.mean() <= 0.0:
        return f"the mean of its healthy losses is {usual.mean():.3g}: ten times that is no spike"
    least = RISE * float(np.abs(usual).max())
    if risen.min() > least:
        return None
    return (
        f"the planted output does not raise the loss ten times: to {risen.min():.3g}, where a spike is above "
        f"{least:.3g}"
    )


def _seen(case: Case, run: RunTrial, *, fault: str, size: float | None = None) -> Sequence[Outcome]:
    """What a fault does to the loss of the loop without a guard."""
    try:
        return run(case.seen_only(fault=fault, size=case.plant.size if size is None else size))
    except Exception as error:  # a loss that refuses what is planted is the loop's own
        raise NotApplicableError(f"the loop itself, without a guard, fails on it: {last_line(error)}") from error


def _planted(case: Case, outcomes: Sequence[Outcome]) -> np.ndarray:
    """The losses of the planted micro-batches, summed over the ranks; NaN where nobody saw them."""
    assert case.place is not None, "nothing is planted in this case"
    places = list(micros_at(case.place, num_micros=outcomes[0].num_micros[FAULTY_WINDOW]))
    return _over_ranks([np.array(outcome.backed[FAULTY_WINDOW]) for outcome in outcomes])[places]


def _over_ranks(losses: Sequence[np.ndarray]) -> np.ndarray:
    return np.sum(losses, axis=0)  # type: ignore[no-any-return]


def healthy_outcomes(run: RunTrial) -> Sequence[Outcome]:
    """The loop without a guard on healthy data.

    Raises:
        TrimtabError: It moves no parameter in the window that is to be faulty: whatever a guard did would be right.
    """
    outcomes = _unguarded(HEALTHY, run)
    for outcome in outcomes:
        before, after = outcome.snapshots[FAULTY_WINDOW : FAULTY_WINDOW + 2]
        if not np.array_equal(before.parameters, after.parameters, equal_nan=True):
            return outcomes
    raise TrimtabError(
        f"the loop does not train: without a guard and on healthy data, window {FAULTY_WINDOW + 1} moved no parameter. "
        "Look at the learning rate, and that Loop.optimizer is stepped once a window."
    )


def guarded(case: Case, run: RunTrial, *, size: float = 1.0) -> Sequence[Outcome]:
    """The loop under the case's guard, with what the case plants.

    Args:
        case: What is to be shown.
        run: Runs a trial.
        size: How much larger the fault's noise is than in the case.

    Raises:
        NotApplicableError: It fails, and so it does without a guard.
        GuardedLoopError: It fails; the cause says why.
    """
    trial = Trial(guard=case.guard) if case.fault is None else case.with_fault(guard=case.guard, size=size)
    expected = [outcome.num_micros for outcome in healthy_outcomes(run)]
    try:
        outcomes = run(trial)
        found = [outcome.num_micros for outcome in outcomes]
        if found != expected:
            raise UsageError(
                f"its windows have {found} micro-batches on each rank, without a guard {expected}: build the same "
                "windows whatever the guard"
            )
    except Exception as error:
        if case.fault is not None and not case.planted.takes_tokens and not getattr(error, "hung", False):
            _seen(case, run, fault=case.planted.name)
        raise GuardedLoopError(last_line(error)) from error
    return outcomes


def _unguarded(trial: Trial, run: RunTrial) -> Sequence[Outcome]:
    try:
        return run(trial)
    except Exception as error:
        raise TrimtabError(
            "The loop without a guard fails on healthy data, or where a micro-batch of it is left out: "
            f"{last_line(error)}. Nothing can be compared with it."
        ) from error


def _oracles(case: Case, run: RunTrial) -> list[Sequence[Outcome]]:
    if case.fault is None:
        return [healthy_outcomes(run)]
    if case.guard == "lenient":
        kept = _unguarded(case.with_fault(guard="none"), run)
        if not all(outcome.is_finite for outcome in kept):
            raise NotApplicableError("the loop itself, without a guard, is not finite after such a spike")
        return [kept]
    if not case.planted.takes_tokens:
        left_out = _unguarded(case.without_loss(), run)
        if left_out[0].not_applicable:
            raise NotApplicableError(
                f'Loop.skipped_tokens is "removed", and what is then the divisor cannot be shown: '
                f"{left_out[0].not_applicable}"
            )
        return [left_out]
    oracles = []
    for trial in case.without_tokens():
        try:
            outcomes = run(trial)
        except Exception as error:
            raise NotApplicableError(f"the loop itself, without a guard, fails on it: {last_line(error)}") from error
        if outcomes[0].not_applicable:
            raise NotApplicableError(outcomes[0].not_applicable)
        hit = [outcomes[rank] for rank in case.ranks]
        usual = _planted(case, [healthy_outcomes(run)[rank] for rank in case.ranks]).sum()
        left = _planted(case, hit).sum()
        if abs(left) > abs(usual) / 2.0:
            raise NotApplicableError(f"its loss without supervised tokens is {left:.3g}, with them {usual:.3g}")
        if all(outcome.is_finite for outcome in outcomes):
            oracles.append(outcomes)
    if not oracles:
        raise NotApplicableError("the loop itself, without a guard, is not finite on it, whatever is left out")
    return oracles


def _length(found: Sequence[Outcome], oracle: Sequence[Outcome]) -> float:
    length = distance(found, oracle, window=-1, since=FAULTY_WINDOW).parameters
    return math.inf if math.isnan(length) else length
