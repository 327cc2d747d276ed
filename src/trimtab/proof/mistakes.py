"""The mistakes that a wiring can have, and how each is told from the others.

Enters: the evidence of a case and the check that failed. Leaves: the mistake that explains it, with two numbers of its
own where it has better ones, or None: then the check speaks for itself. A rule asks for further trials where two
mistakes look alike: the loop with the fault and no guard, with one rank left out, with one term of the output kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from trimtab.proof.cases import Case
from trimtab.proof.comparison import norm
from trimtab.proof.evidence import Evidence, Failed, Named
from trimtab.proof.faults import FAULTY_WINDOW, FINITE_SPIKE, INF_DERIVATIVE


class Mistake(NamedTuple):
    """An entry of the catalogue.

    Attributes:
        what: What is wrong.
        remedy: What to do about it.
    """

    what: str
    remedy: str


MISTAKES: Final = {
    "zeroed_by_multiplication": Mistake(
        "a skipped loss (or its gradients) is multiplied by zero, and 0 x nan is nan",
        "let the guard give the loss to call backward on: run.micro_batch, guard(loss), or kit.accumulate after "
        "guard_loss",
    ),
    "nonfinite_kept": Mistake(
        "a loss that is not finite is not skipped",
        "hand the guard the loss itself, before anything is done about NaN or Inf in it",
    ),
    "last_backward_left_out": Mistake(
        "backward is not called for a skipped micro-batch, so that under DDP the gradients of its window are not "
        "reduced and the ranks drift apart",
        "call backward on every micro-batch, on the loss that the guard gives back",
    ),
    "per_rank_decision": Mistake(
        "each rank decides by its own loss",
        "decide by figures that are summed over the ranks: run.micro_batch, guard(loss) and guard_loss do that; before "
        "guard.check you must",
    ),
    "collectives_unlike": Mistake(
        "the ranks do not make the same collective calls once a micro-batch is skipped",
        "make every call on every rank, whatever the verdict",
    ),
    "nan_in_history": Mistake(
        "a loss that is not finite enters the history, and no later spike is above a mean that is not finite",
        "let the guard keep the history, or take into it what is kept only",
    ),
    "zero_gradients_stepped": Mistake(
        "a window in which nothing counts is stepped with zero gradients, and momentum and weight decay move the "
        "weights",
        "drop that step: run.step and guard(loss) do, kit.finish_window says stepped=False; gradients must be None",
    ),
    "guard_after_backward": Mistake(
        "the guard is asked too late or its verdict has no effect: the update is that of the loop without a guard",
        "ask the guard between forward and backward, and call backward on what it gives back",
    ),
    "not_skipped": Mistake(
        "the planted micro-batches are not skipped",
        "build the guard with the settings that the factory is handed, and ask it once a micro-batch",
    ),
    "skipped_too_much": Mistake(
        "healthy micro-batches are skipped, or one is counted twice",
        "ask the guard once a micro-batch, about the unscaled loss of that micro-batch",
    ),
    "aux_added_outside": Mistake(
        "a further loss term is added to what the guard gives back, and moves the model although its micro-batch is "
        "skipped",
        "hand the term to the guard with the loss: run.micro_batch(..., aux=), or guard(loss + term)",
    ),
    "tokens_zeroed_too": Mistake(
        "the update points where it should and has another size: what is skipped is taken out of the divisor as well",
        'count the tokens of skipped micro-batches in the divisor, or set skipped_tokens="removed" where that is meant',
    ),
    "spike_in_reported_loss": Mistake(
        "the loss that is reported holds the skipped contribution",
        "report StepOutcome.loss or WindowResult.loss, or leave skipped micro-batches out of the mean",
    ),
    "schedule_held": Mistake(
        "the scheduler or the scaler does not go on as it would have",
        "call the scheduler on every window, stepped or not, and scaler.update after every step",
    ),
    "healthy_run_changed": Mistake(
        "the guard changes a training in which there is nothing to skip",
        "keep the loop's own order and arithmetic where nothing is skipped",
    ),
}
"""By name; a rule below tells each."""

_PARALLEL: Final = 1e-6
"""One minus the cosine of two gradients that point the same way."""


def name_mistake(evidence: Evidence, failed: Failed) -> Named | None:
    """The mistake that explains a failed check.

    Args:
        evidence: The case's trials.
        failed: The first check that failed.
    """
    rule = _RULES.get(failed.check)
    return rule(evidence, failed) if rule is not None else None


def mistake_of_error(case: Case, error: BaseException) -> str | None:
    """The mistake behind a loop that did not come to its end under a guard; None where nothing is known of it."""
    if not getattr(error, "hung", False):
        return None
    return "collectives_unlike" if case.is_on_all_ranks else "per_rank_decision"


def _same(mistake: str, failed: Failed) -> Named:
    return Named(mistake, failed.found, failed.expected, failed.text)


# A rule for each check.


def _not_finite(evidence: Evidence, failed: Failed) -> Named | None:
    case = evidence.case
    if any(count < evidence.num_planted - 1 for count in evidence.counts):
        return _same("nonfinite_kept", failed)
    if case.fault == FINITE_SPIKE:
        return None
    # How it fails under a finite spike tells more: there the numbers can be compared.
    under_spike = evidence.fails_as(case.under(FINITE_SPIKE))
    if under_spike is not None and under_spike.mistake is not None:
        return under_spike
    if evidence.counts or case.fault == INF_DERIVATIVE:
        return _same("zeroed_by_multiplication", failed)
    under_root = evidence.fails_as(case.under(INF_DERIVATIVE))
    return _same("zeroed_by_multiplication" if under_root is not None else "nonfinite_kept", failed)


def _ranks_apart(evidence: Evidence, failed: Failed) -> Named | None:
    if len(set(evidence.counts)) > 1:
        return _counts_apart(evidence)
    if not all(outcome.is_reached for outcome in evidence.found):
        return _same("last_backward_left_out", failed)
    return _same("per_rank_decision", failed) if not evidence.case.is_on_all_ranks else None


def _miscounted(evidence: Evidence, failed: Failed) -> Named | None:
    counts, planted = evidence.counts, evidence.num_planted
    if len(set(counts)) > 1:
        return _counts_apart(evidence)
    if counts[0] > planted:
        return _same("skipped_too_much", failed)
    if counts[0] == planted - 1 and evidence.case.follow_up is not None:
        return _same("nan_in_history", failed)
    return _same("not_skipped", failed)


def _moved(evidence: Evidence, failed: Failed) -> Named | None:
    case = evidence.case
    if case.planted.takes_tokens or evidence.equals(case.without_loss(dropped=False)):
        return _same("zero_gradients_stepped", failed)
    return _unlike_oracle(evidence, failed)


def _unlike_oracle(evidence: Evidence, failed: Failed) -> Named | None:
    case = evidence.case
    if case.planted.takes_tokens:
        return _divisor(evidence)
    if case.follow_up is not None and evidence.apart(evidence.oracle).is_near:
        return _unlike_after(evidence, failed)
    if evidence.equals(case.with_fault(guard="none")):
        return _with_size(evidence, "guard_after_backward")
    if not case.is_on_all_ranks and evidence.equals(case.without_loss(ranks=case.ranks)):
        return _with_size(evidence, "per_rank_decision")
    terms = evidence.found[-1].terms
    for term in terms if len(terms) > 1 else ():
        if evidence.equals(case.with_term_kept(term)):
            named = _with_size(evidence, "aux_added_outside")
            return named._replace(text=f"{named.text}; the term is {term} of the model")
    return _divisor(evidence)


def _unlike_after(evidence: Evidence, failed: Failed) -> Named | None:
    """What is wrong in the window after the fault only, where a finite spike stands."""
    under_spike = evidence.fails_as(evidence.case.under(FINITE_SPIKE, place="first"))
    if under_spike is not None:
        return under_spike
    is_blind = evidence.equals(evidence.case.with_blind_guard(), window=FAULTY_WINDOW + 1)
    return _same("nan_in_history", failed) if is_blind else None


def _always(mistake: str) -> Callable[[Evidence, Failed], Named]:
    """The rule of a check that fails for one reason only."""
    return lambda evidence, failed: _same(mistake, failed)  # noqa: ARG005 - a rule is asked with both


_RULES: Final[dict[str, Callable[[Evidence, Failed], Named | None]]] = {
    "all finite": _not_finite,
    "ranks alike": _ranks_apart,
    "skips counted": _miscounted,
    "skipped window moves nothing": _moved,
    "same as the oracle": _unlike_oracle,
    "reported loss": _always("spike_in_reported_loss"),
    "schedule and scaler": _always("schedule_held"),
    "same as no guard": _always("healthy_run_changed"),
}


# What two trainings side by side tell.


def _counts_apart(evidence: Evidence) -> Named:
    count = max(evidence.counts, key=lambda one: abs(one - evidence.num_planted))
    said = ", ".join(f"rank {rank} skipped {count}" for rank, count in enumerate(evidence.counts))
    text = f"{said}; expected {evidence.num_planted} on every rank"
    return Named("per_rank_decision", float(count), float(evidence.num_planted), text)


def _with_size(evidence: Evidence, mistake: str) -> Named:
    """A mistake that shows in how far the faulty window moved the parameters."""
    found, expected = _moves(evidence)
    text = f"window {FAULTY_WINDOW + 1} moved the parameters by {found:.3e}, the oracle by {expected:.3e} (2-norms)"
    return Named(mistake, found, expected, text)


def _moves(evidence: Evidence) -> tuple[float, float]:
    moves = []
    for outcome in (evidence.found[-1], evidence.oracle[-1]):
        before, after = outcome.snapshots[FAULTY_WINDOW], outcome.snapshots[FAULTY_WINDOW + 1]
        moves.append(norm(after.parameters - before.parameters))
    return moves[0], moves[1]


def _divisor(evidence: Evidence) -> Named | None:
    """Gradients that are those of the oracle times a number."""
    ours, theirs = evidence.found[-1].gradients, evidence.oracle[-1].gradients
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    lengths = norm(ours) * norm(theirs)
    if not np.isfinite(lengths) or lengths == 0.0 or 1.0 - float(ours @ theirs) / lengths > _PARALLEL:
        return None
    ratio = norm(ours) / norm(theirs)
    text = f"the gradients of window {FAULTY_WINDOW + 1} are {ratio:.6g} times the oracle's, expected 1 times"
    return Named("tokens_zeroed_too", ratio, 1.0, text)
