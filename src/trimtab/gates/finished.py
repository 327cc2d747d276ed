"""Whether the chunk was trained to its end: the attempt that trained its last step was closed, by every rank.

Enters: evidence. Leaves: the gate `finished`. Invariants: a run that still goes on has not finished, nor one of which
the optimizer took no step; an attempt without a step closes nothing but itself; and of a log that would not tell
nothing is taken for granted.
"""

from __future__ import annotations

from typing import Any

from trimtab.analysis.remarks import count
from trimtab.gates.chunk_steps import OWN_FORMATS
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.text import listed, plain
from trimtab.values import STEP_REASONS


def finished(evidence: Evidence) -> Judged:
    """Judges how the chunk ended, and whether it was trained at all."""
    chunk, told = evidence.chunk, evidence.told
    figures: dict[str, Any] = {
        "attempts": list(chunk.attempts),
        "last_attempt": told.last_attempt,
        "num_steps_taken": int(evidence.steps.is_taken.sum()),
    }
    problem = _problem(evidence)
    if problem is not None:
        return Judged("failed", problem, figures)
    if not figures["num_steps_taken"]:
        text = (
            f"the optimizer took none of steps {chunk.first_step} to {chunk.last_step} ({_left_out(evidence)}): the "
            f"weights are as they were before; {evidence.rewind()} tells why"
        )
        return Judged("failed", text, figures)
    trained = chunk.attempts[-1]
    if trained not in told.ends:
        why = "this log does not tell whether its run has ended"
        remedy = "a run that trimtab.Run or trimtab.attach records does"
        return Judged("unknown", f"{why}: {remedy}", figures)
    num_ranks, seen = evidence.log.header.world_size, len(evidence.reading.rank_ends)
    if seen < num_ranks and evidence.log.format in OWN_FORMATS:
        text = f"closed by {seen} of {num_ranks} ranks; of the others the log holds nothing of attempt {trained}"
        return Judged("unknown", text, figures)
    how = "" if len(chunk.attempts) == 1 else f", interrupted and resumed: {len(chunk.attempts)} attempts"
    text = f"closed after steps {chunk.first_step} to {chunk.last_step}{how}{_beside(evidence, figures)}"
    return Judged("passed", text, figures)


def _problem(evidence: Evidence) -> str | None:
    """Why it has not ended in good order, and what to do; None where nothing says so."""
    chunk, told, trained = evidence.chunk, evidence.told, evidence.chunk.attempts[-1]
    resume = "train the rest of the chunk by a plain resume"
    if told.last_attempt > trained and told.last_attempt not in told.ends:
        return (
            f"attempt {told.last_attempt} has begun and recorded no step yet: it is still going on, or was killed "
            "before its first step; wait for it, or train on by a plain resume"
        )
    still_open = told.open_ends(evidence.log, evidence.reading) if told.last_attempt <= trained else []
    if still_open:
        return f"{'; '.join(still_open)}; wait for it, or {resume}"
    which = "the last attempt" if told.last_attempt <= trained else f"attempt {trained}"
    after = "" if told.last_attempt <= trained else ", and what came after it trained no step"
    broken = told.broken_ends(trained)
    if broken:
        reasons = listed([plain(reason) or "an end without a reason" for reason in broken], most=3)
        text = f"{which} ended at step {chunk.last_step} by {reasons}, and was not closed{after}"
        return f"{text}: find out why, and {resume}"
    if told.last_attempt > trained and trained not in told.ends:
        return f"{which} was killed after step {chunk.last_step}{after}: {resume}"
    return None


def _beside(evidence: Evidence, figures: dict[str, Any]) -> str:
    """What a reader should know of a chunk that was closed: steps not taken, and an attempt behind it."""
    told, num = evidence.told, evidence.chunk.num_steps
    text = ""
    if 2 * figures["num_steps_taken"] < num:
        text = f"; the optimizer took {figures['num_steps_taken']:,} of {count(num, 'step')} ({_left_out(evidence)})"
    if told.last_attempt > evidence.chunk.attempts[-1]:
        reason = told.ends[told.last_attempt] or "an end without a reason"
        text += f"; attempt {told.last_attempt} after it trained no step (its end: {plain(reason)})"
    return text


def _left_out(evidence: Evidence) -> str:
    """What became of the steps that were not taken: `58 dropped and 2 scaler_overflow`."""
    num = {reason: int(evidence.steps.has_reason(reason).sum()) for reason in STEP_REASONS if reason != "stepped"}
    return listed([f"{many:,} {reason}" for reason, many in num.items() if many])
