"""Reports of routers out of a log, and what a reader sees of one.

Enters: events `router` of a watch, or the columns of another tool's log. Leaves: `RouterReport`s for the rules, one at
a time, and the `RouterSummary` of one. Invariant: of a report that is past, nothing is held but what a rule keeps.

What another tool calls `z_loss` or `aux_loss` may be a sum over layers or a mean, times a weight or not. z is read as a
sum over layers, times nothing, unless it never comes near what a sum can be; a load balance is divided by the whole
number next to its least value, which is k where a tool does not divide by it, and balance is 1 then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import SideColumns
from trimtab.router_summary import LayerSummary, RouterSummary
from trimtab.rules.router.figures import load_entropy, max_vio, population_shares
from trimtab.values import Event
from trimtab.watched import LayerFigures, RouterReport, ZScale
from trimtab.watched_json import report_from_facts

MAX_LAYERS: Final = 256
"""Layers of a summary; the worst of them are shown."""

MAX_NOTES: Final = 100
"""Notes of a summary; a log may be anybody's."""

WEIGHTED: Final = 0.5
"""A z whose largest value, or a load balance whose least one, is below this was multiplied by something: over a router
of two experts that chooses nothing z is (ln 2)^2 = 0.48, and of no router the load balance falls below 1 by half."""


_AS_MEASURED: Final = tuple(
    sorted({figure.name for figure in fields(LayerFigures)} & {figure.name for figure in fields(LayerSummary)})
)
"""Figures of a layer that a reader sees as they were measured; the others are made of its counts."""


class SideReports(NamedTuple):
    """The figures of routers in another tool's log.

    Attributes:
        z: (N,) sum over layers; NaN where not logged.
        z_factor: What z is multiplied by; NaN where that is not known.
        load_balance: (N,) 1 at balance; likewise.
        name: What the log calls the load balance.
        z_scale: What the name of z says that it is of; a sum where it says nothing.
        notices: What of it is not judged, and how it was read.
    """

    z: NDArray[np.float64]
    z_factor: float
    load_balance: NDArray[np.float64]
    name: str
    z_scale: ZScale
    notices: tuple[str, ...]


def report_of(event: Event) -> RouterReport:
    """The report that an event `router` holds."""
    return report_from_facts(event.facts, step=event.step)


def read_side(side: SideColumns) -> SideReports:
    """How the figures of another tool's log are to be read, from all that there is of them."""
    z, balance, notices = side.router_z, side.load_balance, []
    z_name = side.names.get("router_z", "router z")
    if (z < 0).any():  # NaN is not below 0
        notices.append(
            f"{z_name!r} is {np.nanmin(z):.3g} at its least, and no router z, a mean of squares, is below 0: it is not "
            "taken for one"
        )
        z = np.full(z.size, np.nan)
    largest = np.nanmax(z) if np.isfinite(z).any() else None
    is_weighted = largest is not None and largest < WEIGHTED
    if is_weighted:
        notices.append(
            f"{z_name!r} is never above {largest:.3g}: it seems to be multiplied by "
            "its weight, and its course alone is judged"
        )
    least = np.nanmin(balance) if np.isfinite(balance).any() else None
    name = side.names.get("load_balance", "load balance")
    if least is not None and least < WEIGHTED:
        notices.append(
            f"{name!r} is {least:.3g} at its least, where a load balance is 1 at balance: it seems to be multiplied by "
            "its weight, and is not judged"
        )
        balance = np.full(balance.size, np.nan)
    elif least is not None and (divisor := max(1.0, float(np.round(least)))) > 1:
        notices.append(f"{name!r} was divided by {divisor:.0f}, near its least value, so that balance is 1")
        balance = balance / divisor
    return SideReports(
        z, np.nan if is_weighted else 1.0, balance, name, "mean" if "mean" in z_name.lower() else "sum", tuple(notices)
    )


def side_report(read: SideReports, place: int, *, step: int, first_step: int) -> RouterReport | None:
    """The report of one entry; None where it holds no figure of a router."""
    z, balance = float(read.z[place]), float(read.load_balance[place])
    has_z, has_balance = np.isfinite(z), np.isfinite(balance)
    if not has_z and not has_balance:
        return None
    return RouterReport(
        step=step,
        first_step=first_step,
        layers=(LayerFigures(name=read.name, load_balance=balance),) if has_balance else (),
        z=z if has_z else None,
        z_scale=read.z_scale,
        z_factor=read.z_factor,
    )


def summary(report: RouterReport, *, first: Sequence[str] = (), notes: Iterable[str] = ()) -> RouterSummary:
    """What a reader sees of a report: its layers, the worst in front.

    Args:
        report: The report.
        first: Layers that a finding names.
        notes: What could not be measured in the reports before it.
    """
    named = set(first)
    layers = sorted(_layers(report), key=lambda layer: (layer.name not in named, *_badness(layer)))
    return RouterSummary(
        step=report.step,
        first_step=report.first_step,
        z=report.z,
        z_scale=report.z_scale if report.z is not None else None,
        layers=tuple(layers[:MAX_LAYERS]),
        layers_left_out=max(0, len(layers) - MAX_LAYERS),
        notes=tuple(dict.fromkeys((*notes, *report.notes)))[:MAX_NOTES],
    )


def _layers(report: RouterReport) -> Iterator[LayerSummary]:
    for layer in report.layers:
        counts = layer.counts
        yield LayerSummary(
            **{figure: getattr(layer, figure) for figure in _AS_MEASURED},
            max_vio=max_vio(counts) if counts else None,
            load_entropy=load_entropy(counts) if counts else None,
            num_silent=sum(count == 0 for count in counts) if counts else None,
            population_shares=_shares(report, counts) if counts else None,
        )


def _shares(report: RouterReport, counts: Sequence[int]) -> tuple[float, ...] | None:
    if not 1 < report.num_populations <= len(counts):
        return None
    return population_shares(counts, num_populations=report.num_populations)


def _badness(layer: LayerSummary) -> tuple[float, float]:
    """Smaller is worse: by the load, then by z."""
    load = max((figure for figure in (layer.load_balance, layer.max_vio) if figure is not None), default=0.0)
    z = layer.z if layer.z is not None else 0.0
    worst_first = np.nan_to_num([-load, -z], nan=-np.inf, neginf=-np.inf)
    return float(worst_first[0]), float(worst_first[1])
