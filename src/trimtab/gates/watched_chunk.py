"""What gates share that judge by a watch: which findings fail them, whether it looked, and how figures went.

Enters: evidence. Leaves: findings, and the pieces of a `Judged`. Invariants: what a watch warns of is judged by its own
rules, from the log; of a report that is missing nothing is taken for granted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.analysis.watched_stretch import Course
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import GateName, Judged
from trimtab.rules.said import Standing
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import FindingKind

KINDS_OF_GATES: Final[Mapping[GateName, tuple[FindingKind, ...]]] = {
    "router_z": ("z_band", "logits_growing", "scale_changed"),
    "router_load": ("collapse", "load_balance_rising", "counts_mismatch"),
    "dead_experts": ("dead_experts",),
    "eval_streak": ("eval_regression", "eval_nonfinite"),
}
"""Which findings fail which gate; the gate `watch` has the others."""

_MAY_PASS: Final[tuple[FindingKind, ...]] = ("collapse", "dead_experts")
"""Findings that a router which begins at random may show and get over by itself; what weighs marks checkpoints."""


def go_back(evidence: Evidence) -> str:
    """What to do where a gate failed; which checkpoint to go back to `way_back` says once for all gates."""
    return f"do not build on it: {evidence.rewind()} tells more"


def failing(evidence: Evidence, kinds: Sequence[FindingKind]) -> list[Standing]:
    """Findings of some kinds that were made in the chunk, or stand at its end; notices aside."""
    at_end = evidence.at_end
    standing = [one for one in at_end.standing if one.finding.kind in kinds and one.finding.severity != "notice"]
    known = {(one.finding.kind, one.finding.layers) for one in standing}
    made = [
        Standing(one, one.step)
        for one in at_end.findings
        if one.kind in kinds
        and one.severity != "notice"
        and at_end.stretch.holds(one.step)
        and (one.kind not in _MAY_PASS or one.marks_unhealthy)
        and (one.kind, one.layers) not in known
    ]
    return [*standing, *made]


def findings_in_words(found: Sequence[Standing], *, most: int = 2, kinds: bool = False) -> str:
    """The first findings, and how many more there are; with `kinds` what each of them is called."""
    told = []
    for one, since in found[:most]:
        when = f"step {one.step}" if since == one.step else f"since step {since}, last seen at step {one.step}"
        told.append(f"{f'{one.kind}: ' if kinds else ''}{plain(one.text)} ({when})")
    num_more = len(found) - most
    more = [f"and {num_more} {'finding' if num_more == 1 else 'findings'} more"] if num_more > 0 else []
    return "; ".join([*told, *more])


def due_steps(evidence: Evidence) -> list[int]:
    """The steps of the chunk after which a watch looks, by the settings of their attempts."""
    steps, due = evidence.steps, list[int]()
    for attempt in evidence.chunk.attempts:
        stated = evidence.told.watches.get(attempt)
        if stated is not None:
            own = steps.step[steps.attempt == attempt]
            due += own[own % stated.config.report_every == 0].tolist()
    return sorted(due)


def not_watched(evidence: Evidence) -> str | None:
    """That no watch looked after the run, or after attempts of it, as a clause; None where one did after all of it."""
    if not evidence.unwatched:
        return None
    all_of_it = len(evidence.unwatched) == len(evidence.chunk.attempts)
    which = "the run" if all_of_it else f"attempt {listed(map(str, evidence.unwatched), most=5)}"
    return f"no watch looked after {which}"


def not_measured(evidence: Evidence) -> Judged | None:
    """Why the routers of the chunk are not known; None where every report that is due is there."""
    seen, unwatched = evidence.at_end.stretch, not_watched(evidence)
    if unwatched is not None:
        return Judged("unknown", f"{unwatched}: pass watch=True, which tells as well whether the model has routers")
    routers = [evidence.told.watches[attempt].watches_routers for attempt in evidence.chunk.attempts]
    if not seen.steps and all(watches is False for watches in routers):
        return Judged("inapplicable", "the watch found no router in this model")
    due = due_steps(evidence)
    if not due:
        every = evidence.settings.report_every
        text = f"the chunk is too short for a report of its routers, one every {every} steps: lower report_every"
        return Judged("unknown", text)
    missing = [step for step in due if step not in seen.steps]
    if missing:
        named = listed(map(str, missing), most=3)
        which = "step" if len(missing) == 1 else "steps"
        text = f"no report of {which} {named} in the log, where one was due: the watch was off there"
        return Judged("unknown", text, {"steps_without_report": missing[:100]})
    gone = seen.names - {layer.name for layer in seen.report.layers} if seen.report is not None else ()
    if gone:
        text = f"the last report has nothing of {listed(map(plain, sorted(gone)), most=3)}, of which an earlier one has"
        return Judged("unknown", text, {"layers_gone": sorted(map(plain, gone))[:100]})
    return None


def judge_routers(
    evidence: Evidence,
    kinds: Sequence[FindingKind],
    shown: str,
    *,
    figures: Mapping[str, Any],
    is_known: bool,
    problem: str = "",
) -> Judged:
    """What comes of a gate that some findings about routers fail.

    Args:
        evidence: The evidence.
        kinds: The findings.
        shown: What is told where nothing was found; empty where nothing is known.
        figures: The same for a program.
        is_known: Whether all layers of all reports had the figure.
        problem: What fails it by the last report alone, told where no finding is; empty where nothing does.
    """
    found = failing(evidence, kinds)
    if found or problem:
        beside = f"; {shown}" if shown else ""
        text = f"{findings_in_words(found) if found else problem}{beside}; {go_back(evidence)}"
        return Judged("failed", text, {**figures, "findings": [one.finding.to_dict() for one in found]})
    unmeasured = not_measured(evidence)
    if unmeasured is not None:
        return unmeasured
    if not is_known:
        report = evidence.at_end.stretch.report
        why = f": {plain(report.notes[0])}" if report is not None and report.notes else ""
        return Judged("unknown", f"not every layer of every report has the figure{why}", figures)
    return Judged("passed", shown, figures)


def judge_course(
    evidence: Evidence,
    kinds: Sequence[FindingKind],
    course: Course,
    *,
    key: str,
    named: str,
    beside: str = "",
    ending: str = "",
    problem: str = "",
    more: Mapping[str, Any] | None = None,
) -> Judged:
    """What comes of a gate about a figure that every layer of every report has.

    Args:
        evidence: The evidence.
        kinds: The findings that fail it.
        course: How far the figure went.
        key: What programs call it.
        named: What a reader calls it.
        beside: Said behind how far it went.
        ending: Said behind what it is now.
        problem: As of `judge_routers`.
        more: Figures told besides, where it is known.
    """
    report, shown = evidence.at_end.stretch.report, ""
    figures: dict[str, Any] = {
        f"{key}_low": json_number(course.whole.low),
        f"{key}_high": json_number(course.whole.high),
    }
    if report is not None and course.whole.is_known:
        figures |= {"last_low": json_number(course.last.low), "last_high": json_number(course.last.high)}
        figures |= {"step": report.step, **(more or {})}
        now = f"; {shown_range(*course.last)} at step {report.step}" if course.last.is_known else ""
        shown = f"{named} {shown_range(*course.whole)}{beside}{now}{ending}"
    return judge_routers(evidence, kinds, shown, figures=figures, is_known=course.is_known, problem=problem)


def shown_range(low: float, high: float) -> str:
    """From the least to the largest, as a sentence has it."""
    least, largest = f"{low:.4g}", f"{high:.4g}"
    return least if least == largest else f"{least} to {largest}"
