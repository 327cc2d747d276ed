"""Whether every expert has tokens in the last report of the chunk, as far as chance goes.

Enters: evidence. Leaves: what came of the gate `dead_experts`. Invariant: an expert that was silent by chance is not
dead, and one whose layer has no counts is not alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.analysis.remarks import count
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, go_back, judge_routers
from trimtab.rules.router.figures import known_top_k, silent_by_chance, usable_counts
from trimtab.text import listed, plain


def dead_experts(evidence: Evidence) -> Judged:
    """Judges whether experts get no tokens any more at the chunk's end, which chance would not explain."""
    report = evidence.at_end.stretch.report
    layers = report.layers if report is not None else ()
    counted = [(layer, counts) for layer in layers if (counts := usable_counts(layer)) is not None]
    num_experts = sum(len(counts) for _, counts in counted)
    num_silent = sum(not num for _, counts in counted for num in counts)
    dead: dict[str, tuple[int, ...]] = {}
    for layer, counts in counted:
        top_k = known_top_k(layer)
        passed_by = {expert: sum(counts) // top_k for expert, num in enumerate(counts) if not num}
        found = silent_by_chance(passed_by, num_experts=len(counts), top_k=top_k, chance=evidence.settings.dead_chance)
        if found:
            dead[layer.name] = found
    figures: dict[str, Any] = {
        "num_experts": num_experts,
        "num_silent": num_silent,
        "num_dead": sum(map(len, dead.values())),
        "layers": {plain(name): list(experts) for name, experts in dead.items()},
        "step": None if report is None else report.step,
    }
    if dead:
        where = listed([f"{plain(name)} ({_experts(experts)})" for name, experts in dead.items()], most=3)
        text = f"experts got no token in the report of step {figures['step']}, which chance does not explain: {where}"
        return Judged("failed", f"{text}; {go_back(evidence)}", figures)
    silent = f", {num_silent:,} silent as chance has it" if num_silent else ""
    shown = (
        f"none of {num_experts:,} in {count(len(counted), 'layer')} at step {figures['step']}{silent}"
        if counted
        else ""
    )
    is_known = 0 < len(counted) == len(layers)
    return judge_routers(evidence, KINDS_OF_GATES["dead_experts"], shown, figures=figures, is_known=is_known)


def _experts(experts: Sequence[int]) -> str:
    which = "expert" if len(experts) == 1 else "experts"
    return f"{which} {listed(map(str, experts), most=8)}"
