"""What a loop reports as its windows' losses, against what they must be.

Enters: a case's evidence. Leaves: the loss that is wrong and what was expected, or None. Invariant: only losses that
both sides report are compared, for a loop may report none without a guard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trimtab.proof.cases import LARGER
from trimtab.proof.evidence import Evidence, Failed
from trimtab.proof.faults import FAULTY_WINDOW, FINITE_SPIKE, micros_at
from trimtab.proof.gathering import guarded, healthy_outcomes
from trimtab.proof.trial import Outcome

_LOSS_ROUNDINGS: Final = 1000.0
"""Units in the last place, relative to the largest, that reported losses may differ by."""

_ALIKE: Final = 3.0
"""How many times the smallest the largest of losses is that are alike."""


def reported(evidence: Evidence) -> Failed | None:
    """Of a case with a fault: a loss that is not finite, not the oracle's in a healthy window, or the fault's."""
    case = evidence.case
    if case.place != "all":
        for outcome in evidence.found:
            for window, loss in enumerate(outcome.losses):
                if loss is not None and not math.isfinite(loss):
                    text = f"the reported loss of window {window + 1} is {loss}, expected a finite one"
                    return Failed(loss, 0.0, text + evidence.of_rank(outcome))
    if (failed := _others_reported(evidence) or _kept_reported(evidence)) is not None:
        return failed
    if case.fault != FINITE_SPIKE or case.guard == "lenient":
        return None
    larger = guarded(case, evidence.run, size=LARGER)
    return _losses_apart(evidence, larger, what=f"under a fault {LARGER:g} times as large")


def _others_reported(evidence: Evidence) -> Failed | None:
    """A reported loss of a healthy window that is not the oracle's."""
    for outcome, oracle in zip(evidence.found, evidence.oracle, strict=True):
        known = [loss for loss in oracle.losses if loss is not None and math.isfinite(loss)]
        roundings = min(_LOSS_ROUNDINGS * oracle.end.epsilon, 0.02) * max(map(abs, known), default=0.0)
        for window, (loss, same) in enumerate(zip(outcome.losses, oracle.losses, strict=False)):
            if window in evidence.case.planted_windows or loss is None or same is None or not math.isfinite(same):
                continue
            if not abs(loss - same) <= roundings:
                text = f"the reported loss of window {window + 1} is {loss:.6g}, that of the oracle {same:.6g}"
                return Failed(loss, same, f"{text}, expected the same{evidence.of_rank(outcome)}")
    return None


def _kept_reported(evidence: Evidence) -> Failed | None:
    """A reported loss of the faulty window that cannot be that of its kept micro-batches, healthy as they are."""
    case = evidence.case
    if case.place in (None, "all") or case.planted.takes_tokens or case.guard == "lenient":
        return None
    for outcome, oracle in zip(evidence.found, healthy_outcomes(evidence.run), strict=True):
        usual = [loss for loss in oracle.losses if loss is not None]
        if len(usual) != len(outcome.losses) or not usual or min(usual) <= 0.0 or max(usual) > _ALIKE * min(usual):
            continue  # nothing is known of what a loss of some of them would be
        loss, whole = outcome.losses[FAULTY_WINDOW], usual[FAULTY_WINDOW]
        num_micros = outcome.num_micros[FAULTY_WINDOW]
        num_kept = num_micros - len(micros_at(case.place, num_micros=num_micros))
        least, most = whole * num_kept / num_micros / _ALIKE, whole * num_micros / num_kept
        if loss is None or least <= loss <= most:
            continue
        text = (
            f"the reported loss of window {FAULTY_WINDOW + 1} is {loss:.6g}, expected {least:.6g} to {most:.6g}, for "
            f"that of all its micro-batches is {whole:.6g} where none is skipped"
        )
        return Failed(loss, whole, text + evidence.of_rank(outcome))
    return None


def _losses_apart(evidence: Evidence, others: Sequence[Outcome], *, what: str) -> Failed | None:
    for outcome, other in zip(evidence.found, others, strict=True):
        if not outcome.losses or not other.losses:
            continue  # one of the two reports none, as a loop may that has no guard to ask
        for window, (loss, same) in enumerate(zip(outcome.losses, other.losses, strict=True)):
            if loss is None or same is None or loss == same or (math.isnan(loss) and math.isnan(same)):
                continue
            text = f"the reported loss of window {window + 1} is {loss:.6g}, {what} {same:.6g}, expected the same"
            return Failed(loss, same, text + evidence.of_rank(outcome))
    return None


def reported_as_healthy(evidence: Evidence) -> Failed | None:
    """Of a case without one: a loss that is not the one without a guard."""
    return _losses_apart(evidence, evidence.oracle, what="without a guard")
