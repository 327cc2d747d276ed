"""Whether the evaluations of the run do not become worse and worse up to the end of the chunk.

Enters: evidence. Leaves: the gate `eval_streak`. Invariants: an evaluation that is no number neither ends a streak nor
passes; the streak runs over the begin of the chunk, for a regression that began before it is one all the same.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import failing, findings_in_words, go_back
from trimtab.rules.health.evaluated import evaluated_losses
from trimtab.text import plain
from trimtab.values import json_number

MOST_WORSE: Final = 3
"""Evaluations in a row, each worse than the one before, that fail it, whatever a watch that is more patient warns of: a
run whose router had collapsed showed three, one that held never more than one."""


class _Evaluated(NamedTuple):
    """One loss of an evaluation in the chunk."""

    step: int
    name: str
    loss: float


def eval_streak(evidence: Evidence) -> Judged:
    """Judges the streak of worse evaluations at the chunk's end."""
    chunk = evidence.chunk
    seen = [
        _Evaluated(event.step, plain(name), loss)
        for event in evidence.at_end.stretch.evaluations
        for name, loss in evaluated_losses(event.facts)
    ]
    if not seen:
        text = f"no evaluation in steps {chunk.first_step} to {chunk.last_step}: run.evaluation(loss) records one"
        return Judged("unknown", text, {"num_evaluations": 0})
    patience = min(MOST_WORSE, evidence.settings.eval_patience)
    by_name = evidence.at_end.evaluations
    names = dict.fromkeys(one.name for one in seen)
    worst = max(names, key=lambda name: int(by_name.get(name, {}).get("num_worse", 0)))
    streak = by_name.get(worst, {})
    last = next(one for one in reversed(seen) if one.name == worst)
    figures: dict[str, Any] = {
        "num_evaluations": len(seen),
        "name": worst,
        "streak": streak.get("num_worse", 0),
        "patience": patience,
        "best": streak.get("best"),
        "best_step": streak.get("best_step"),
        "last": json_number(last.loss),
        "last_step": last.step,
    }
    problem = _problem(evidence, seen, figures)
    shown = _shown(evidence, seen, figures)
    if problem is not None:
        return Judged("failed", f"{problem}; {shown}; {go_back(evidence)}", figures)
    return Judged("passed", shown, figures)


def _problem(evidence: Evidence, seen: list[_Evaluated], figures: dict[str, Any]) -> str | None:
    """What fails it; None where nothing does."""
    broken = [one for one in seen if not math.isfinite(one.loss)]
    if broken:
        first = broken[0]
        more = f", and {len(broken) - 1:,} more" if len(broken) > 1 else ""
        return f"the evaluation{_of(first.name)} at step {first.step} is {json_number(first.loss)}{more}"
    found = failing(evidence, ("eval_nonfinite",))
    if found:
        return findings_in_words(found, most=1)
    if figures["streak"] >= figures["patience"]:
        return f"the evaluation{_of(figures['name'])} became worse {figures['streak']} times in a row"
    standing = [one.finding for one in evidence.at_end.standing]
    regressed = [one for one in standing if one.kind == "eval_regression" and one.marks_unhealthy]
    if regressed:
        return f"{plain(regressed[0].text)}, and is not back since"
    return None


def _shown(evidence: Evidence, seen: list[_Evaluated], figures: dict[str, Any]) -> str:
    last, last_step, end = figures["last"], figures["last_step"], evidence.chunk.last_step
    streak, patience = figures["streak"], figures["patience"]
    of = f" of the {patience} that fail it" if streak < patience else f", where {patience} fail it"
    text = f"streak {streak}{of}{_of(figures['name'])}"
    if figures["best"] is not None:
        text += f", best {figures['best']:.6g} at step {figures['best_step']}"
    text += f", last {last if isinstance(last, str) else f'{last:.6g}'} at step {last_step}"
    return text if max(one.step for one in seen) == end else f"{text}; none at step {end}, the chunk's last"


def _of(name: str) -> str:
    return f" of {name}" if name else ""
