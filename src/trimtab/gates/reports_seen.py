"""What is kept of the reports, evaluations and looks of a watch while a log is judged.

Enters: events and reports of a run, in its order. Leaves: the last report of the chunk, how far z and the load balance
went in it, and at which steps there was anything. Invariant: a report that is past is let go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from trimtab.gates.values import Chunk
from trimtab.values import Event
from trimtab.watched import EVALUATION_EVENT, VITALS_EVENT, RouterReport, ZScale

MAX_NAMES: Final = 65_536
"""Names of layers that are held: a log may be anybody's."""


@dataclass(slots=True)
class Course:
    """How far a figure went over the reports of a chunk; NaN where none had it.

    Attributes:
        low: The least of all layers and reports.
        high: The largest one.
        num_unknown: Layers of reports without it.
        num_nonfinite: Layers of reports in which it was not finite.
    """

    low: float = math.nan
    high: float = math.nan
    num_unknown: int = 0
    num_nonfinite: int = 0

    def absorb(self, value: float | None) -> None:
        """Takes in one layer of a report."""
        if value is None:
            self.num_unknown += 1
        elif not math.isfinite(value):
            self.num_nonfinite += 1
        else:
            self.low = value if math.isnan(self.low) else min(self.low, value)
            self.high = value if math.isnan(self.high) else max(self.high, value)

    @property
    def is_known(self) -> bool:
        """Whether every layer of every report had it, and a finite one."""
        return not math.isnan(self.low) and not self.num_unknown and not self.num_nonfinite


@dataclass(slots=True)
class ReportsSeen:
    """Looks on while a log is judged, and keeps what the gates tell.

    Args:
        chunk: What is of interest.

    Attributes:
        last: The last report of the chunk; None without one.
        names: Layers of all of them, `MAX_NAMES` at most.
        steps: Steps of the chunk at which there was a report.
        looks: Steps of the chunk at which there was a report, or vitals.
        z: How far the z of a layer went, or that of the model where layers have none.
        z_scale: What that z is of.
        load_balance: How far the load balance of a layer went.
        evaluations: Those of the run, in its order.
    """

    chunk: Chunk
    last: RouterReport | None = None
    names: set[str] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    looks: set[int] = field(default_factory=set)
    z: Course = field(default_factory=Course)
    z_scale: ZScale = "layer"
    load_balance: Course = field(default_factory=Course)
    evaluations: list[Event] = field(default_factory=list)

    def wants(self, step: int) -> bool:
        """Whether a step is of the chunk."""
        return self.chunk.first_step <= step <= self.chunk.last_step

    def event(self, event: Event) -> None:
        """Takes an event of the run."""
        if event.kind == EVALUATION_EVENT:
            self.evaluations.append(event)
        elif event.kind == VITALS_EVENT and self.wants(event.step):
            self.looks.add(event.step)

    def report(self, report: RouterReport) -> None:
        """Takes a report of the routers."""
        if not self.wants(report.step):
            return
        self.last = report
        self.steps.add(report.step)
        self.looks.add(report.step)
        if report.z is not None:
            self.z_scale = report.z_scale
            self.z.absorb(report.z)
        if len(self.names) < MAX_NAMES:
            self.names.update(layer.name for layer in report.layers)
        for layer in report.layers:
            if report.z is None:
                self.z.absorb(layer.z)
            self.load_balance.absorb(layer.load_balance)
