"""Whether the tokens stay spread over the experts: no collapse, no load balance that rises, counts that add up.

Enters: evidence. Leaves: what came of the gate `router_load`. Invariant: a figure that a layer lacks is not guessed.
"""

from __future__ import annotations

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, judge_course


def router_load(evidence: Evidence) -> Judged:
    """Judges how the tokens are spread over the experts."""
    return judge_course(
        evidence,
        KINDS_OF_GATES["router_load"],
        evidence.at_end.stretch.load_balance,
        key="load_balance",
        named="load balance of a layer",
        beside=" (even: 1)",
    )
