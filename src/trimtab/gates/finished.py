"""Whether the chunk was trained to its end: its last attempt was closed, by every rank.

Enters: evidence. Leaves: the gate `finished`. Invariant: a run that still goes on has not finished, and of a log that
would not tell nothing is taken for granted.
"""

from __future__ import annotations

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.text import listed, plain


def finished(evidence: Evidence) -> Judged:
    """Judges how the chunk ended."""
    chunk, told = evidence.chunk, evidence.told
    newest = evidence.reading.newest_attempt
    figures = {"attempts": list(chunk.attempts), "last_attempt": told.last_attempt}
    if told.last_attempt > newest and told.last_attempt not in told.ends:
        text = (
            f"attempt {told.last_attempt} has begun and recorded no step yet: it is still going on, or was killed "
            "before its first step; wait for it, or train on by a plain resume"
        )
        return Judged("failed", text, figures)
    still_open = told.open_ends(evidence.log, evidence.reading)
    if still_open:
        text = f"{'; '.join(still_open)}; wait for it, or train the rest of the chunk by a plain resume"
        return Judged("failed", text, figures)
    broken = told.broken_ends()
    if broken:
        reasons = listed([plain(reason) or "an end without a reason" for reason in broken], most=3)
        text = (
            f"the last attempt ended at step {chunk.last_step} by {reasons}, and was not closed: find out why, and "
            "train the rest of the chunk by a plain resume"
        )
        return Judged("failed", text, {**figures, "reasons": list(broken)})
    if not told.ends:
        why = "this log does not tell whether its run has ended"
        remedy = "a run that trimtab.Run or trimtab.attach records does"
        return Judged("unknown", f"{why}: {remedy}", figures)
    if newest not in told.ends:
        text = (
            f"attempt {newest} was killed after step {chunk.last_step}, and the one after it trained no step: train "
            "the rest of the chunk by a plain resume"
        )
        return Judged("failed", text, figures)
    steps = f"steps {chunk.first_step} to {chunk.last_step}"
    how = "" if len(chunk.attempts) == 1 else f", interrupted and resumed: {len(chunk.attempts)} attempts"
    return Judged("passed", f"closed after {steps}{how}", figures)
