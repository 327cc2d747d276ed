"""Whether the routers are sound at the end of the chunk: z in its band and trend, the load spread, no dead experts.

Enters: evidence. Leaves: the gates `router_z`, `router_load` and `dead_experts`. Invariants: what the watch warns of is
judged by its own rules, from the log; of a report that is missing nothing is taken for granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.gates.evidence import Evidence
from trimtab.gates.reports_seen import Course
from trimtab.gates.values import Gate, GateName
from trimtab.rules.router.figures import known_top_k, silent_by_chance, usable_counts
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import FindingKind, WatchFinding, ZScale

ROUTER_KINDS: Final[Mapping[GateName, tuple[FindingKind, ...]]] = {
    "router_z": ("z_band", "logits_growing", "scale_changed"),
    "router_load": ("collapse", "load_balance_rising", "counts_mismatch"),
    "dead_experts": ("dead_experts",),
}
"""Which findings fail which gate."""

_MAY_PASS: Final[tuple[FindingKind, ...]] = ("collapse", "dead_experts")
"""Findings that a router which begins at random may show and get over by itself; what weighs marks checkpoints."""

_OF: Final[Mapping[ZScale, str]] = {"layer": "of a layer", "sum": "summed over layers", "mean": "mean over layers"}

GO_BACK: Final = "do not build on it: trimtab rewind tells more, and trimtab ckpt pick --healthy a checkpoint before it"


def router_z(evidence: Evidence) -> Gate:
    """Judges the logits of the routers by their z, which tells of their size."""
    seen, last = evidence.reports.z, evidence.reports.last
    figures: dict[str, Any] = {"z_low": json_number(seen.low), "z_high": json_number(seen.high)}
    shown = ""
    if last is not None and not math.isnan(seen.low):
        now = Course()
        for z in [last.z] if last.z is not None else [layer.z for layer in last.layers]:
            now.absorb(z)
        figures |= {"z_scale": evidence.reports.z_scale, "last_low": json_number(now.low), "step": last.step}
        figures["last_high"] = json_number(now.high)
        of = _OF[evidence.reports.z_scale]
        shown = f"z {of} {shown_range(seen.low, seen.high)}"
        shown += "" if math.isnan(now.low) else f"; {shown_range(now.low, now.high)} at step {last.step}"
    return _judge(evidence, "router_z", shown, figures=figures, is_known=seen.is_known)


def router_load(evidence: Evidence) -> Gate:
    """Judges how the tokens are spread over the experts."""
    seen, last = evidence.reports.load_balance, evidence.reports.last
    figures: dict[str, Any] = {"load_balance_low": json_number(seen.low), "load_balance_high": json_number(seen.high)}
    shown = ""
    if last is not None and not math.isnan(seen.low):
        now = Course()
        for layer in last.layers:
            now.absorb(layer.load_balance)
        figures |= {"last_high": json_number(now.high), "step": last.step}
        shown = f"load balance of a layer {shown_range(seen.low, seen.high)} (even: 1)"
        shown += "" if math.isnan(now.high) else f"; {shown_range(now.low, now.high)} at step {last.step}"
    return _judge(evidence, "router_load", shown, figures=figures, is_known=seen.is_known)


def dead_experts(evidence: Evidence) -> Gate:
    """Judges whether experts get no tokens any more at the chunk's end, which chance would not explain."""
    last, watch = evidence.reports.last, evidence.watch
    layers = last.layers if last is not None else ()
    counted = [(layer, counts) for layer in layers if (counts := usable_counts(layer)) is not None]
    num_experts = sum(len(counts) for _, counts in counted)
    num_silent = sum(count == 0 for _, counts in counted for count in counts)
    dead: dict[str, tuple[int, ...]] = {}
    for layer, counts in counted:
        top_k = known_top_k(layer)
        passed_by = {expert: sum(counts) // top_k for expert, count in enumerate(counts) if not count}
        chance = watch.config.dead_chance if watch is not None else 1e-6
        found = silent_by_chance(passed_by, num_experts=len(counts), top_k=top_k, chance=chance)
        if found:
            dead[layer.name] = found
    figures: dict[str, Any] = {
        "num_experts": num_experts,
        "num_silent": num_silent,
        "num_dead": sum(map(len, dead.values())),
        "layers": {plain(name): list(experts) for name, experts in dead.items()},
        "step": None if last is None else last.step,
    }
    if dead:
        where = listed([f"{plain(name)} ({_experts(experts)})" for name, experts in dead.items()], most=3)
        text = f"experts got no token in the report of step {figures['step']}, which chance does not explain: {where}"
        return Gate(name="dead_experts", status="failed", text=f"{text}; {GO_BACK}", figures=figures)
    silent = f", {num_silent:,} silent as chance has it" if num_silent else ""
    shown = f"none of {num_experts:,} in {len(counted):,} layers at step {figures['step']}{silent}" if counted else ""
    return _judge(
        evidence, "dead_experts", shown, figures=figures, is_known=bool(counted) and len(counted) == len(layers)
    )


def not_measured(evidence: Evidence, name: GateName) -> Gate | None:
    """Why the routers of the chunk are not known, as a gate; None where every report that is due is there."""
    chunk, reports = evidence.chunk, evidence.reports
    watch = evidence.watch
    if watch is not None and not evidence.unwatched and not reports.steps:
        routers = [evidence.told.watches[attempt].watches_routers for attempt in chunk.attempts]
        if all(watches is False for watches in routers):
            text = "the watch knows no router in this model; pass trimtab.moe.RouterWatch(model, routers=...) if it has"
            return Gate(name=name, status="inapplicable", text=text)
    if evidence.unwatched:
        if len(evidence.unwatched) == len(chunk.attempts):
            what = "no watch looked after the run"
        else:
            what = f"no watch looked after attempt {listed(map(str, evidence.unwatched), most=5)}"
        how = "pass watch=True, or watch=trimtab.moe.RouterWatch(model, ...) for a model that it does not know"
        return Gate(name=name, status="unknown", text=f"{what}: {how}")
    due = due_steps(evidence)
    if not due:
        every = watch.config.report_every if watch is not None else 0
        text = f"the chunk is too short for a report of its routers, one every {every} steps: report_every=..."
        return Gate(name=name, status="unknown", text=text)
    missing = [step for step in due if step not in reports.steps]
    if missing:
        named = listed(map(str, missing), most=3)
        which = "step" if len(missing) == 1 else "steps"
        text = f"no report of {which} {named} in the log, where one was due: the watch was off there"
        return Gate(name=name, status="unknown", text=text, figures={"steps_without_report": missing[:100]})
    gone = reports.names - {layer.name for layer in reports.last.layers} if reports.last is not None else ()
    if gone:
        text = f"the last report has nothing of {listed(map(plain, sorted(gone)), most=3)}, of which an earlier one has"
        return Gate(name=name, status="unknown", text=text, figures={"layers_gone": sorted(map(plain, gone))[:100]})
    return None


def due_steps(evidence: Evidence) -> list[int]:
    """The steps of the chunk after which a watch looks, by the settings of their attempts."""
    steps, due = evidence.steps, list[int]()
    for attempt in evidence.chunk.attempts:
        stated = evidence.told.watches.get(attempt)
        if stated is not None:
            own = steps.step[steps.attempt == attempt]
            due += own[own % stated.config.report_every == 0].tolist()
    return sorted(due)


def failing(evidence: Evidence, kinds: Sequence[FindingKind]) -> list[WatchFinding]:
    """Findings of some kinds that were made in the chunk, or stand at its end; notices aside."""
    at_end, wants = evidence.at_end, evidence.reports.wants
    standing = [one for one in at_end.standing if one.kind in kinds and one.severity != "notice"]
    known = {(one.kind, one.layers) for one in standing}
    made = [
        one
        for one in at_end.findings
        if one.kind in kinds
        and one.severity != "notice"
        and wants(one.step)
        and (one.kind not in _MAY_PASS or one.marks_unhealthy)
        and (one.kind, one.layers) not in known
    ]
    return [*standing, *made]


def _judge(evidence: Evidence, name: GateName, shown: str, *, figures: Mapping[str, Any], is_known: bool) -> Gate:
    """The gate of some kinds of findings.

    Args:
        evidence: The evidence.
        name: Which gate.
        shown: What is told where nothing was found; empty where nothing is known.
        figures: The same for a program.
        is_known: Whether all layers of all reports had the figure.
    """
    found = failing(evidence, ROUTER_KINDS[name])
    if found:
        told = "; ".join(f"{plain(one.text)} (step {one.step})" for one in found[:2])
        more = f"; and {len(found) - 2} findings more" if len(found) > 2 else ""
        beside = f"; {shown}" if shown else ""
        return Gate(
            name=name,
            status="failed",
            text=f"{told}{more}{beside}; {GO_BACK}",
            figures={**figures, "findings": [one.to_dict() for one in found]},
        )
    unmeasured = not_measured(evidence, name)
    if unmeasured is not None:
        return unmeasured
    if not is_known:
        notes = evidence.reports.last.notes if evidence.reports.last is not None else ()
        why = f": {plain(notes[0])}" if notes else ""
        text = f"not every layer of every report has the figure{why}"
        return Gate(name=name, status="unknown", text=text, figures=figures)
    return Gate(name=name, status="passed", text=shown, figures=figures)


def shown_range(low: float, high: float) -> str:
    """From the least to the largest, as a sentence has it."""
    least, largest = f"{low:.4g}", f"{high:.4g}"
    return least if least == largest else f"{least} to {largest}"


def _experts(experts: Sequence[int]) -> str:
    which = "expert" if len(experts) == 1 else "experts"
    return f"{which} {listed(map(str, experts), most=8)}"
