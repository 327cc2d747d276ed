"""What a watch left of a stretch of a run: its last report of routers, how far figures went, and when it looked.

Enters: events and reports of a run, in its order. Leaves: `WatchedStretch`, for whoever judges that stretch. Invariant:
a report that is past is let go, but for the last few.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trimtab.values import Event
from trimtab.watched import EVALUATION_EVENT, VITALS_EVENT, RouterReport, ZScale

MAX_NAMES: Final = 65_536
"""Names of layers that are held: a log may be anybody's."""


NUM_RECENT: Final = 3
"""Reports that are held, the last one included: as many as `rules.router.persistence` lets a young router have."""


class Span(NamedTuple):
    """From the least to the largest of some figures; NaN where none is known."""

    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether there is any."""
        return not math.isnan(self.low)


_NOTHING: Final = Span()


@dataclass(slots=True)
class Course:
    """How far a figure went over the reports of a stretch.

    Attributes:
        whole: Over all layers of all reports.
        last: Over the layers of the last report.
        is_complete: Whether every layer of every report had it, and a finite one.
    """

    whole: Span = _NOTHING
    last: Span = _NOTHING
    is_complete: bool = True

    def absorb(self, figures: Iterable[float | None]) -> None:
        """Takes in the layers of a report."""
        told = list(figures)
        known = [figure for figure in told if figure is not None and math.isfinite(figure)]
        self.is_complete &= len(known) == len(told)
        self.last = Span(min(known), max(known)) if known else _NOTHING
        if known:
            before = self.whole if self.whole.is_known else self.last
            self.whole = Span(min(before.low, self.last.low), max(before.high, self.last.high))

    @property
    def is_known(self) -> bool:
        """Whether nothing of it is missing."""
        return self.whole.is_known and self.is_complete


@dataclass(slots=True)
class WatchedStretch:
    """What a watch left of a stretch; of one without a step nothing is kept.

    Args:
        first_step: First optimizer step of the stretch.
        last_step: Its last one.

    Attributes:
        report: The last report of routers; None without one.
        recent: The last `NUM_RECENT` up to its end, also from before it, oldest first.
        names: Layers of all of them, `MAX_NAMES` at most.
        num_layers: Layers of all of them, each as often as it was told.
        steps: Steps at which there was a report.
        looks: Steps at which there was a report, or vitals.
        z: How far the z of a layer went, or that of the model where layers have none.
        z_scale: What that z is of.
        load_balance: How far the load balance of a layer went.
        evaluations: Evaluations in it, in their order.
    """

    first_step: int = 1
    last_step: int = 0
    report: RouterReport | None = None
    recent: deque[RouterReport] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))
    names: set[str] = field(default_factory=set)
    num_layers: int = 0
    steps: set[int] = field(default_factory=set)
    looks: set[int] = field(default_factory=set)
    z: Course = field(default_factory=Course)
    z_scale: ZScale = "layer"
    load_balance: Course = field(default_factory=Course)
    evaluations: list[Event] = field(default_factory=list)

    def holds(self, step: int) -> bool:
        """Whether a step is of it."""
        return self.first_step <= step <= self.last_step

    def take(self, event: Event) -> None:
        """Takes an event of the run; reports come by `take_report`."""
        if not self.holds(event.step):
            return
        if event.kind == EVALUATION_EVENT:
            self.evaluations.append(event)
        elif event.kind == VITALS_EVENT:
            self.looks.add(event.step)

    def take_report(self, report: RouterReport) -> None:
        """Takes a report of the routers."""
        if self.first_step <= self.last_step >= report.step:
            self.recent.append(report)
        if not self.holds(report.step):
            return
        self.report = report
        self.num_layers += len(report.layers)
        self.steps.add(report.step)
        self.looks.add(report.step)
        if report.z is None:
            self.z.absorb(layer.z for layer in report.layers)
        else:
            self.z_scale = report.z_scale
            self.z.absorb([report.z])
        self.load_balance.absorb(layer.load_balance for layer in report.layers)
        if len(self.names) < MAX_NAMES:
            self.names.update(layer.name for layer in report.layers)
