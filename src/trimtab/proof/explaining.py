"""How one mistake of a wiring is told from the others: a rule for each check.

Enters: the evidence of a case and the check that failed. Leaves: the mistake that explains it, with two numbers of its
own where it has better ones, or None: then the check speaks for itself. A rule asks for further trials where two
mistakes look alike: the loop with the fault and no guard, with one rank left out, with one term of the output kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from trimtab.proof.cases import Case
from trimtab.proof.comparison import norm
from trimtab.proof.evidence import Evidence, Failed, Named
from trimtab.proof.faults import FAULTY_WINDOW, FINITE_SPIKE, INF_DERIVATIVE
from trimtab.proof.mistakes import Mistake

Rule = Callable[[Evidence, Failed], Named | None]
"""Gives the mistake behind a failed check."""

_PARALLEL: Final = 1e-6
"""One minus the cosine of two gradients that point the same way."""


_SAME_SIZE: Final = 1e-3
"""How far the ratio of two gradients may be from 1 that are of one size."""


def mistake_of_error(case: Case, error: BaseException) -> Mistake | None:
    """The mistake behind a loop that did not come to its end under a guard; None where nothing is known of it."""
    if case.fault is not None and "was judged and not accumulated" in " ".join(str(error).split()):  # a kit's words
        return Mistake.last_backward_left_out
    if case.fault is None or not getattr(error, "hung", False):
        return None
    return Mistake.collectives_unlike if case.is_on_all_ranks else Mistake.per_rank_decision


def _same(mistake: Mistake, failed: Failed) -> Named:
    return Named(mistake, failed.found, failed.expected, failed.text)


# A rule for each check.


def not_finite(evidence: Evidence, failed: Failed) -> Named | None:
    """A number that is not finite: the fault was kept, or the way of leaving it out lets it through."""
    case = evidence.case
    if any(count < evidence.num_planted - 1 for count in evidence.counts):
        return _same(Mistake.nonfinite_kept, failed)
    if case.fault == FINITE_SPIKE:
        return None
    # How it fails under a finite spike tells more: there the numbers can be compared.
    under_spike = evidence.fails_as(case.under(FINITE_SPIKE))
    if under_spike is not None and under_spike.mistake is not None:
        return under_spike
    return _same(_way_of_poison(evidence), failed) if under_spike is None else None


def ranks_apart(evidence: Evidence, failed: Failed) -> Named | None:
    """Ranks whose parameters differ."""
    if len(set(evidence.counts)) > 1:
        return _counts_apart(evidence)
    if not all(outcome.is_reached for outcome in evidence.found):
        return _same(Mistake.last_backward_left_out, failed)
    return _same(Mistake.per_rank_decision, failed) if not evidence.case.is_on_all_ranks else None


def miscounted(evidence: Evidence, failed: Failed) -> Named | None:
    """Too few skips, too many, or not as many on each rank."""
    counts, planted = evidence.counts, evidence.num_planted
    if len(set(counts)) > 1:
        return _counts_apart(evidence)
    case = evidence.case
    if counts[0] > planted:
        is_lenient = case.guard == "lenient"
        return _same(Mistake.settings_not_handed_on if is_lenient else Mistake.skipped_too_much, failed)
    if case.follow_up is None:
        return _same(Mistake.not_skipped, failed)
    is_spike_skipped = evidence.fails_as(case.under(FINITE_SPIKE)) is None
    if counts[0] == planted - 1 and evidence.apart(evidence.oracle).is_near and is_spike_skipped:
        return _same(Mistake.nan_in_history, failed)
    return _same(Mistake.nonfinite_kept if is_spike_skipped else Mistake.not_skipped, failed)


def misjudged(evidence: Evidence, failed: Failed) -> Named | None:  # noqa: ARG001 - a rule is asked with both
    """A guard that was asked too often: its window of losses holds some twice."""
    return _same(Mistake.skipped_too_much, failed) if failed.found > failed.expected else None


def moved(evidence: Evidence, failed: Failed) -> Named | None:
    """A window in which nothing counts, and that moves the model."""
    case = evidence.case
    if case.planted.takes_tokens or evidence.equals(case.without_loss(dropped=False)):
        return _same(Mistake.zero_gradients_stepped, failed)
    return unlike_oracle(evidence, failed)


def unlike_oracle(evidence: Evidence, failed: Failed) -> Named | None:
    """A training that is finite and is not that which never saw the fault."""
    case = evidence.case
    if case.guard == "lenient":
        return _same(Mistake.settings_not_handed_on, failed)
    if case.planted.takes_tokens:
        return _divisor(evidence)
    if case.follow_up is not None and evidence.apart(evidence.oracle).is_near:
        return _unlike_after(evidence, failed)
    if evidence.equals(case.with_fault(guard="none")):
        return _with_size(evidence, Mistake.guard_after_backward)
    if not case.is_on_all_ranks and evidence.equals(case.without_loss(ranks=case.ranks)):
        return _with_size(evidence, Mistake.per_rank_decision)
    if case.place != "all" and evidence.equals(case.with_window_dropped()):
        # A norm that was not finite costs the window; unless a finite spike, whose norm is, costs it too.
        if case.fault == FINITE_SPIKE or evidence.fails_as(case.under(FINITE_SPIKE)) is not None:
            return None
        return _with_size(evidence, _way_of_poison(evidence))
    terms = evidence.found[-1].terms
    for term in terms if len(terms) > 1 else ():
        if evidence.equals(case.with_term_kept(term)):
            named = _with_size(evidence, Mistake.aux_added_outside)
            return named._replace(text=f"{named.text}; the term is {term} of the model")
    return _divisor(evidence)


def _unlike_after(evidence: Evidence, failed: Failed) -> Named | None:
    """What is wrong in the window after the fault only, where a finite spike stands."""
    under_spike = evidence.fails_as(evidence.case.under(FINITE_SPIKE, place="first"))
    if under_spike is not None:
        return under_spike
    is_blind = evidence.equals(evidence.case.with_blind_guard(), window=FAULTY_WINDOW + 1)
    return _same(Mistake.nan_in_history, failed) if is_blind else None


def always(mistake: Mistake) -> Rule:
    """The rule of a check that fails for one reason only."""
    return lambda evidence, failed: _same(mistake, failed)  # noqa: ARG005 - a rule is asked with both


# What two trainings side by side tell.


def _way_of_poison(evidence: Evidence) -> Mistake:
    """How a fault that is not finite comes into gradients that a finite spike does not come into."""
    if evidence.counts or evidence.case.fault == INF_DERIVATIVE:
        return Mistake.zeroed_by_multiplication
    # Nobody says whether it was skipped: a finite loss of infinite derivative is, by a guard that keeps what is NaN.
    under_root = evidence.fails_as(evidence.case.under(INF_DERIVATIVE))
    return Mistake.nonfinite_kept if under_root is None else Mistake.zeroed_by_multiplication


def _counts_apart(evidence: Evidence) -> Named:
    count = max(evidence.counts, key=lambda one: abs(one - evidence.num_planted))
    said = ", ".join(f"rank {rank} skipped {count}" for rank, count in enumerate(evidence.counts))
    text = f"{said}; expected {evidence.num_planted} on every rank"
    return Named(Mistake.per_rank_decision, float(count), float(evidence.num_planted), text)


def _with_size(evidence: Evidence, mistake: Mistake) -> Named:
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
    if abs(ratio - 1.0) <= _SAME_SIZE or evidence.case.skipped_tokens == "removed":
        return None
    text = f"the gradients of window {FAULTY_WINDOW + 1} are {ratio:.6g} times the oracle's, expected 1 times"
    return Named(Mistake.tokens_zeroed_too, ratio, 1.0, text)
