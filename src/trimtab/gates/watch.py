"""Whether nothing else that a watch warns of stands at the end of the chunk.

Enters: evidence. Leaves: what came of the gate `watch`. Invariant: each finding fails one gate; those that have a gate
of their own are left to it.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, due_steps, findings_in_words, go_back, not_watched
from trimtab.text import listed
from trimtab.watched import FindingKind, WatchFinding

STANDS_STILL: Final[tuple[FindingKind, ...]] = ("loss_scale_collapse", "nonfinite", "eval_unchanged")
"""Findings of a training that gets nowhere, which mark no checkpoint, for the weights are as good as they were: one
step after the other is left out, or evaluations are the same to the last bit. The next chunk would get nowhere too."""


def watch(evidence: Evidence) -> Judged:
    """Judges what stands of all findings that no other gate is about."""
    of_others = {kind for kinds in KINDS_OF_GATES.values() for kind in kinds}
    standing = [one for one in evidence.at_end.standing if one.finding.kind not in of_others]
    found = [one for one in standing if _fails(one.finding)]
    figures: dict[str, Any] = {"findings": [one.finding.to_dict() for one in standing]}
    if found:
        return Judged("failed", f"{findings_in_words(found, kinds=True)}; {go_back(evidence)}", figures)
    unwatched = not_watched(evidence)
    if unwatched is not None:
        text = f"{unwatched}, and nothing in its log stands against it: pass watch=True"
        return Judged("unknown", text, figures)
    missing = [step for step in due_steps(evidence) if step not in evidence.at_end.stretch.looks]
    if missing:
        why = "it was off there, or had neither a model nor routers to look at"
        text = f"the watch left no word of its look at step {missing[0]}: {why}"
        return Judged("unknown", text, {**figures, "steps_without_look": missing[:100]})
    kinds = list(dict.fromkeys(one.finding.kind for one in standing))
    beside = f" ({listed(kinds, most=5)} as a warning)" if kinds else ""
    return Judged("passed", f"nothing stands that marks a checkpoint{beside}", figures)


def _fails(finding: WatchFinding) -> bool:
    return finding.severity == "critical" or finding.marks_unhealthy or finding.kind in STANDS_STILL
