"""Whether nothing else that a watch warns of stands at the end of the chunk.

Enters: evidence. Leaves: the gate `watch`. Invariant: each finding fails one gate; those that have a gate of their own
are left to it.
"""

from __future__ import annotations

from typing import Final

from trimtab.gates.evidence import Evidence
from trimtab.gates.routers import GO_BACK, ROUTER_KINDS, due_steps
from trimtab.gates.values import Gate
from trimtab.text import listed, plain
from trimtab.watched import FindingKind

_OF_OTHERS: Final[frozenset[FindingKind]] = frozenset(
    (*(kind for kinds in ROUTER_KINDS.values() for kind in kinds), "eval_regression", "eval_nonfinite")
)


def watch(evidence: Evidence) -> Gate:
    """Judges what stands of all findings that no other gate is about."""
    standing = [one for one in evidence.at_end.standing if one.kind not in _OF_OTHERS]
    found = [one for one in standing if one.severity == "critical" or one.marks_unhealthy]
    figures = {"findings": [one.to_dict() for one in standing]}
    if found:
        told = "; ".join(f"{one.kind}: {plain(one.text)} (step {one.step})" for one in found[:2])
        more = f"; and {len(found) - 2} findings more" if len(found) > 2 else ""
        return Gate(name="watch", status="failed", text=f"{told}{more}; {GO_BACK}", figures=figures)
    if evidence.unwatched:
        all_of_it = len(evidence.unwatched) == len(evidence.chunk.attempts)
        which = "the run" if all_of_it else f"attempt {listed(map(str, evidence.unwatched), most=5)}"
        text = f"no watch looked after {which}, and nothing in its log stands against it: pass watch=True"
        return Gate(name="watch", status="unknown", text=text, figures=figures)
    due, looks = due_steps(evidence), evidence.reports.looks
    missing = [step for step in due if step not in looks]
    if missing:
        why = "it was off there, or had neither a model nor routers to look at"
        text = f"the watch left no word of its look at step {missing[0]}: {why}"
        return Gate(name="watch", status="unknown", text=text, figures={**figures, "steps_without_look": missing[:100]})
    kinds = list(dict.fromkeys(one.kind for one in standing))
    beside = f" ({listed(kinds, most=5)} as a warning)" if kinds else ""
    text = f"nothing stands that marks a checkpoint{beside}"
    return Gate(name="watch", status="passed", text=text, figures=figures)
