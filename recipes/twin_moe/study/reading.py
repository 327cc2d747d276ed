"""What the log of one arm of the study says: its routers, its evaluations, and which of them told of trouble first.

Enters: the folder of an arm, trained with one z weight and one seed. Leaves: `ArmResult`, plain values. Invariant:
every figure is of the run's log, as `trimtab rewind` reads it, and none of the trainer's memory; of what was trained
twice, after an interruption, the later attempt counts.

Shapes: R reports of routers, L layers, N evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import trimtab
from trimtab.analysis.attempts import read_runs
from trimtab.analysis.health_order import events_in_order
from trimtab.analysis.router_reports import report_of, summary
from trimtab.rules.health.evaluated import evaluated_losses
from trimtab.values import json_number
from trimtab.watched import EVALUATION_EVENT, KINDS, ROUTER_EVENT, RouterReport, WatchFinding

Layers = tuple[tuple[float, ...], ...]
"""(R, L) a figure of each layer in each report; NaN where it is not known."""

MOST_FINDINGS: Final = 100
"""Findings of an arm that are kept, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCourse:
    """The routers of a run, report by report.

    Attributes:
        steps: (R,) last optimizer step of each report.
        layers: (L,) names of the routers, in the order of the model.
        num_experts: E of a layer.
        top_k: Experts that a token is sent to.
        z: (R, L) mean over tokens of logsumexp(logits)^2.
        token_entropy: (R, L) nats; confidence: ln E where the router is uniform, 0 where it is sure.
        load_entropy: (R, L) nats; balance: ln E where every expert has as much, ln k where all tokens go to the same.
        max_vio: (R, L) largest load over mean load, minus 1.
        load_balance: (R, L) 1 at balance.
    """

    steps: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    num_experts: int | None = None
    top_k: int | None = None
    z: Layers = ()
    token_entropy: Layers = ()
    load_entropy: Layers = ()
    max_vio: Layers = ()
    load_balance: Layers = ()


class Fall(NamedTuple):
    """A stretch of evaluations that became worse.

    Attributes:
        step: The first evaluation of it that was worse than the one before: as early as evaluations can show it.
        said_step: The evaluation at which the watch called it, the third worse one in a row.
    """

    step: int
    said_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm, read back.

    Attributes:
        z_weight: Weight of the router z-loss.
        seed: Of the weights and of the order of the rows.
        in_sweep: Whether it is of the sweep; one that is not is there to show what the watch says.
        folder: Where it was trained, under the study's folder.
        run_id: Its run.
        num_steps: Last optimizer step in its log; 0 where none was reached.
        routers: What its routers did.
        eval_steps: (N,) steps of the evaluations.
        eval_losses: (N,) nats a token; NaN and infinities as they came.
        findings: What the watch's rules find in the log, the worst first.
        ended_by: The error that ended it before its last step; None where there was none.
    """

    z_weight: float
    seed: int
    in_sweep: bool
    folder: str
    run_id: str | None = None
    num_steps: int = 0
    routers: RouterCourse = RouterCourse()
    eval_steps: tuple[int, ...] = ()
    eval_losses: tuple[float, ...] = ()
    findings: tuple[WatchFinding, ...] = ()
    ended_by: str | None = None

    @property
    def final_eval(self) -> float | None:
        """The last evaluation."""
        return self.eval_losses[-1] if self.eval_losses else None

    @property
    def best_eval(self) -> float | None:
        """The least evaluation that is a number."""
        return min((loss for loss in self.eval_losses if math.isfinite(loss)), default=None)

    @property
    def first_warning(self) -> WatchFinding | None:
        """The first finding about the routers that is more than a notice."""
        return _first(one for one in self.findings if KINDS[one.kind].of == "router")

    @property
    def fall(self) -> Fall | None:
        """Where its evaluations began to become worse and worse, or were no number; None where they did not."""
        found = _first(one for one in self.findings if one.kind in ("eval_regression", "eval_nonfinite"))
        if found is None:
            return None
        steps = found.figures.get("steps")
        worse_from = steps[1] if isinstance(steps, list) and len(steps) > 1 else found.step
        return Fall(step=int(worse_from), said_step=found.step)

    @property
    def lead_steps(self) -> int | None:
        """Steps by which the watch's first warning came before the evaluations fell; None where one of them is none."""
        if self.first_warning is None or self.fall is None:
            return None
        return self.fall.step - self.first_warning.step

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of an arm; numbers that are not finite are spelled as text."""
        routers = self.routers
        return {
            "z_weight": self.z_weight,
            "seed": self.seed,
            "in_sweep": self.in_sweep,
            "folder": self.folder,
            "run_id": self.run_id,
            "num_steps": self.num_steps,
            "ended_by": self.ended_by,
            "routers": {one.name: _spelled(getattr(routers, one.name)) for one in fields(routers)},
            "evals": {"steps": list(self.eval_steps), "losses": _spelled(self.eval_losses)},
            "final_eval": json_number(self.final_eval),
            "best_eval": json_number(self.best_eval),
            "first_warning": None if self.first_warning is None else _told(self.first_warning),
            "eval_fell": None if self.fall is None else self.fall._asdict(),
            "lead_steps": self.lead_steps,
            "findings": [_told(one) for one in self.findings],
        }


def read_arm(
    out: Path, folder: Path, *, z_weight: float, seed: int, in_sweep: bool, ended_by: str | None = None
) -> ArmResult:
    """Reads the log of an arm.

    Args:
        out: The study's folder.
        folder: The arm's own, in it.
        z_weight: What it was trained with, and likewise `seed`.
        seed: See there.
        in_sweep: See `ArmResult`.
        ended_by: See there.

    Returns:
        What stands in the log; an empty result where the arm has none, or not a single step.

    Raises:
        LogError: A log is there that cannot be read.
    """
    empty = ArmResult(
        z_weight=z_weight, seed=seed, in_sweep=in_sweep, folder=str(folder.relative_to(out)), ended_by=ended_by
    )
    if not any(folder.glob("trimtab/*")):
        return empty
    log = trimtab.open_log(folder)
    series = read_runs(log)[-1].series
    if not series.num_steps:
        return empty
    found = trimtab.rewind(log.path)
    reports, evals = [], {}
    for event, _ in events_in_order(log, (ROUTER_EVENT, EVALUATION_EVENT), series=series, is_only_run=True):
        if event.kind == ROUTER_EVENT:
            reports.append(report_of(event))
        else:
            evals[event.step] = dict(evaluated_losses(event.facts)).get("", math.nan)
    return ArmResult(
        z_weight=z_weight,
        seed=seed,
        in_sweep=in_sweep,
        folder=empty.folder,
        run_id=log.header.run_id,
        num_steps=int(series.step[-1]),
        routers=_course(reports),
        eval_steps=tuple(evals),
        eval_losses=tuple(evals.values()),
        findings=tuple(found.health[:MOST_FINDINGS]),
        ended_by=ended_by,
    )


def weight_name(weight: float) -> str:
    """A weight as it is written in tables, legends and names of folders.

    Example:
        >>> [weight_name(weight) for weight in (0.0, 0.0001, 0.00025, 0.1, 1.0, 10.0)]
        ['0', '1e-4', '2.5e-4', '1e-1', '1', '10']
    """
    if weight == 0 or weight >= 1:
        return f"{weight:g}"
    mantissa, _, exponent = f"{weight:.5e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def _course(reports: Sequence[RouterReport]) -> RouterCourse:
    if not reports:
        return RouterCourse()
    first = reports[0].layers
    names = tuple(layer.name for layer in first)
    columns: dict[str, list[tuple[float, ...]]] = {
        name: [] for name in ("z", "token_entropy", "load_entropy", "max_vio", "load_balance")
    }
    for report in reports:
        by_name = {layer.name: layer for layer in summary(report).layers}
        for figure, column in columns.items():
            values = (getattr(by_name.get(name), figure, None) for name in names)
            column.append(tuple(math.nan if value is None else value for value in values))
    return RouterCourse(
        steps=tuple(report.step for report in reports),
        layers=names,
        num_experts=first[0].num_experts if first else None,
        top_k=first[0].top_k if first else None,
        **{figure: tuple(column) for figure, column in columns.items()},
    )


def _first(findings: Iterable[WatchFinding]) -> WatchFinding | None:
    return min((one for one in findings if one.severity != "notice"), key=lambda one: one.step, default=None)


def _told(finding: WatchFinding) -> dict[str, Any]:
    """A finding without its figures, which stand in the log."""
    told = finding.to_dict()
    return {name: told[name] for name in ("kind", "severity", "step", "text", "layers", "marks_unhealthy")}


def _spelled(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_spelled(one) for one in value]
    return json_number(value) if isinstance(value, float) else value
