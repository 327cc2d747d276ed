"""What is checked of a case: trials are run, their outcomes compared, and a `CaseResult` goes out.

Enters: a case, and a way to run its trials. Leaves: proven, failed with the two numbers that differ, or not applicable.
Invariants: a check that fails names what was found and what was expected; a case is proven only if every check that
applies to it was made.

    case -> trials -> evidence -> the checks, in the order of CHECKS -> the first that fails -> its rule: the mistake
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from trimtab.proof import explaining
from trimtab.proof.cases import Case
from trimtab.proof.comparison import largest_gap, norm, state_gap
from trimtab.proof.evidence import Evidence, Failed, Named, RunTrial
from trimtab.proof.factory import last_line
from trimtab.proof.faults import FAULTY_WINDOW
from trimtab.proof.gathering import GuardedLoopError, NotApplicableError, gather
from trimtab.proof.mistakes import Mistake
from trimtab.proof.reported import reported, reported_as_healthy
from trimtab.proof.trial import Outcome
from trimtab.proven import CaseResult

_WINDOW: Final = FAULTY_WINDOW + 1
"""The faulty window as people count; also the place of the state after it among snapshots, the first of which is the
state before any."""

NOT_THROUGH: Final = "comes to its end"
"""The check of a case whose trial under the guard raises, dies or waits for ever."""


class Check(NamedTuple):
    """Something that is asked of a case's evidence.

    Attributes:
        name: What reports call it.
        look: Gives what is wrong; None where nothing is.
        explain: Gives the mistake behind it; None where none is known.
    """

    name: str
    look: Callable[[Evidence], Failed | None]
    explain: explaining.Rule


def judge(case: Case, run: RunTrial) -> CaseResult:
    """Runs the trials that a case needs, and says what they show.

    Args:
        case: What is to be shown.
        run: Runs a trial on as many processes as the case has, and gives the outcome of each rank; it may answer from
            memory what it was asked before. What it raises about a loop under a guard, or without tokens, becomes the
            result.

    Raises:
        TrimtabError: The loop fails without a guard too, on healthy data: such a loop cannot be proven.
    """
    try:
        evidence = _gathered(case, run)
        found = first_failure(evidence)
    except NotApplicableError as reason:
        return case.result("not_applicable", text=str(reason))
    except GuardedLoopError as broken:
        return _not_through(case, broken.__cause__)
    if found is None:
        return case.result("proven", text=_how_near(evidence))
    check, failed = found
    named = check.explain(evidence, failed)
    if named is None or named.mistake is None:
        return _failed(case, check.name, failed, text=f"{failed.text}.")
    return _failed(case, check.name, named, mistake=named.mistake, text=named.mistake.sentence(named.text))


def first_failure(evidence: Evidence) -> tuple[Check, Failed] | None:
    """The first check that fails, and what it found; None where the case is proven."""
    checks = HEALTHY_CHECKS if evidence.case.fault is None else CHECKS
    return next(((check, failed) for check in checks if (failed := check.look(evidence)) is not None), None)


def _gathered(case: Case, run: RunTrial) -> Evidence:
    def fails_as(other: Case) -> Named | None:
        try:
            evidence = _gathered(other, run)
            failure = first_failure(evidence)
        except (NotApplicableError, GuardedLoopError) as error:
            return Named(None, math.nan, 0.0, str(error))
        if failure is None:
            return None
        check, failed = failure
        return check.explain(evidence, failed) or Named(None, failed.found, failed.expected, failed.text)

    return gather(case, run, fails_as=fails_as)


# Checks. Each gives what failed, or None.


def _finite(evidence: Evidence) -> Failed | None:
    for outcome in evidence.found:
        for place, snapshot in enumerate(outcome.snapshots):
            if snapshot.is_finite:
                continue
            num_bad = int((~np.isfinite(snapshot.parameters)).sum() + (~np.isfinite(snapshot.moments)).sum())
            text = f"{num_bad} numbers of parameters and moments are not finite after window {place}, expected 0"
            return Failed(float(num_bad), 0.0, text + evidence.of_rank(outcome))
    return None


def _ranks_alike(evidence: Evidence) -> Failed | None:
    first, *others = evidence.found
    if any(not _alike(evidence.oracle[0], oracle) for oracle in evidence.oracle[1:]) or first.end.is_sharded:
        return None  # ranks that hold parts, or that train apart without a guard, have nothing in common
    for outcome in others:
        for place, (ours, theirs) in enumerate(zip(first.snapshots, outcome.snapshots, strict=True)):
            if ours.digest != theirs.digest:
                gap = largest_gap(ours.parameters, theirs.parameters)
                text = (
                    f"after window {place} the parameters of ranks {first.rank} and {outcome.rank} differ by up to "
                    f"{gap:.3e}, expected 0"
                )
                return Failed(gap, 0.0, text)
    return None


def _alike(first: Outcome, second: Outcome) -> bool:
    return [one.digest for one in first.snapshots] == [one.digest for one in second.snapshots]


def _counted(evidence: Evidence) -> Failed | None:
    case, planted = evidence.case, evidence.num_planted
    # Without tokens it is kept; by a guard of scalar losses, which sees 0 / 0, skipped.
    allowed = {0, planted} if case.fault is not None and case.planted.takes_tokens else {planted}
    wrong = [(outcome, count) for outcome, count in evidence.counted if count not in allowed]
    if not wrong and len({count for _, count in evidence.counted}) <= 1:
        return None
    outcome, count = wrong[0] if wrong else evidence.counted[-1]
    text = f"the guard says it skipped {count} micro-batches, expected {planted}" + evidence.of_rank(outcome)
    return Failed(float(count), float(planted), text)


def _judged(evidence: Evidence) -> Failed | None:
    case = evidence.case
    for outcome in evidence.found:
        num_micros = sum(outcome.num_micros)
        expected = num_micros if case.guard != "off" else 0
        # A guard need not be asked about no tokens.
        least = expected - evidence.num_planted if case.fault is not None and case.planted.takes_tokens else expected
        if outcome.num_judged is None or least <= outcome.num_judged <= expected:
            continue
        text = f"the guard says it judged {outcome.num_judged} micro-batches, expected {expected}"
        return Failed(float(outcome.num_judged), float(expected), text + evidence.of_rank(outcome))
    return None


def _unmoved(evidence: Evidence) -> Failed | None:
    case = evidence.case
    if case.place != "all" or (case.planted.takes_tokens and not case.is_on_all_ranks):
        return None
    for outcome in evidence.found:
        before, after = outcome.snapshots[FAULTY_WINDOW], outcome.snapshots[_WINDOW]
        if before.digest != after.digest:
            length = norm(after.parameters - before.parameters)
            text = f"window {_WINDOW}, in which nothing counts, moved the parameters by {length:.3e}, expected 0"
            if length == 0.0:
                length = state_gap(after, before)
                text = (
                    f"window {_WINDOW}, in which nothing counts, moved the optimizer state (moments and step counts) "
                    f"by {length:.3e}, expected 0"
                )
            return Failed(length, 0.0, text + evidence.of_rank(outcome))
    return None


def _like_oracle(evidence: Evidence) -> Failed | None:
    for window in range(FAULTY_WINDOW, len(evidence.oracle[0].num_micros)):
        apart = evidence.apart(evidence.oracle, window=window)
        if not apart.is_near and apart.parameters == 0.0:
            text = (
                f"after window {window + 1} the optimizer state (moments and step counts) is {apart.state:.3e} from "
                "that of the training that never saw the fault (2-norm), expected 0"
            )
            return Failed(apart.state, 0.0, text)
        if not apart.is_near:
            text = (
                f"after window {window + 1} the parameters are {apart.parameters:.3e} from those of the training that "
                f"never saw the fault (2-norm; it moved by {apart.move:.3e} since window {FAULTY_WINDOW}), expected 0"
            )
            return Failed(apart.parameters, 0.0, text)
    return None


def _on_schedule(evidence: Evidence) -> Failed | None:
    for outcome, oracle in zip(evidence.found, evidence.oracle, strict=True):
        for place, (ours, theirs) in enumerate(zip(outcome.snapshots, oracle.snapshots, strict=True)):
            if len(ours.lrs) != len(theirs.lrs):
                text = f"the optimizer has {len(ours.lrs)} learning rates, expected {len(theirs.lrs)}"
                return Failed(float(len(ours.lrs)), float(len(theirs.lrs)), text + evidence.of_rank(outcome))
            pairs = [("learning rate", lr, expected) for lr, expected in zip(ours.lrs, theirs.lrs, strict=True)]
            if ours.scale is not None and theirs.scale is not None:
                pairs.append(("loss scale", ours.scale, theirs.scale))
            for what, found, expected in pairs:
                if found != expected:
                    text = f"the {what} after window {place} is {found:.6g}, expected {expected:.6g}"
                    return Failed(found, expected, text + evidence.of_rank(outcome))
    return None


def _like_healthy(evidence: Evidence) -> Failed | None:
    for outcome, oracle in zip(evidence.found, evidence.oracle, strict=True):
        for place, (ours, theirs) in enumerate(zip(outcome.snapshots, oracle.snapshots, strict=True)):
            if (ours.digest, ours.buffers) != (theirs.digest, theirs.buffers):
                gap = largest_gap(ours.parameters, theirs.parameters)
                text = (
                    f"after window {place} the parameters differ by up to {gap:.3e} from those without a guard, "
                    "expected 0, to the last bit; a loop that trains otherwise each time shows the same"
                )
                if gap == 0.0:
                    gap = state_gap(ours, theirs)
                    text = (
                        f"after window {place} the optimizer state (moments and step counts) is {gap:.3e} from that "
                        "without a guard (2-norm), and the model's buffers are "
                        f"{'the same' if ours.buffers == theirs.buffers else 'others'}; expected the same to the last "
                        "bit"
                    )
                return Failed(gap, 0.0, text + evidence.of_rank(outcome))
    return None


_COUNTED: Final = Check("skips counted", _counted, explaining.miscounted)
_JUDGED: Final = Check("micro-batches judged", _judged, explaining.misjudged)
_ON_SCHEDULE: Final = Check("schedule and scaler", _on_schedule, explaining.always(Mistake.schedule_held))

CHECKS: Final = (
    Check("all finite", _finite, explaining.not_finite),
    Check("ranks alike", _ranks_alike, explaining.ranks_apart),
    _COUNTED,
    _JUDGED,
    Check("skipped window moves nothing", _unmoved, explaining.moved),
    _ON_SCHEDULE,
    Check("same as the oracle", _like_oracle, explaining.unlike_oracle),
    Check("reported loss", reported, explaining.always(Mistake.spike_in_reported_loss)),
)
"""Of a case with a fault. What is not finite can be compared with nothing; ranks that part, and another learning rate,
explain what follows."""

HEALTHY_CHECKS: Final = (
    Check("same as no guard", _like_healthy, explaining.always(Mistake.healthy_run_changed)),
    _COUNTED,
    _JUDGED,
    Check("reported loss", reported_as_healthy, explaining.always(Mistake.spike_in_reported_loss)),
    _ON_SCHEDULE,
)
"""Of a case without one."""


# Results.


def _how_near(evidence: Evidence) -> str:
    what = "the training without a guard" if evidence.case.fault is None else "the training that never saw the fault"
    apart = evidence.apart(evidence.oracle, window=-1)
    if apart.is_bitwise:
        return f"equal to {what}, to the last bit"
    return f"equal to {what}, to rounding: {apart.parameters:.1e} apart (2-norm), of {apart.move:.1e} that it moved"


def _not_through(case: Case, error: BaseException | None) -> CaseResult:
    assert error is not None, "what did not come through says why"
    said = last_line(error)
    mistake = explaining.mistake_of_error(case, error)
    text = f"the loop under a guard failed: {said}." if mistake is None else mistake.sentence(said)
    return _failed(case, NOT_THROUGH, mistake=mistake, text=text)


def _failed(
    case: Case, check: str, numbers: Failed | Named | None = None, *, mistake: Mistake | None = None, text: str
) -> CaseResult:
    return case.result(
        "failed",
        check=check,
        found=numbers.found if numbers is not None else None,
        expected=numbers.expected if numbers is not None else None,
        mistake=mistake.name if mistake is not None else None,
        text=text,
    )
