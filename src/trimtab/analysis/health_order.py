"""The events of a run in the order of its steps: of what was trained twice, those of the attempt that counts.

    stretches of the series -> passes over the log -> events, each with the step behind which it took place

Enters: a log and the series of one of its runs. Leaves: events, one at a time: reports of routers are large, and none
is held here. Invariant: an event comes out exactly if the steps around it count, and never before one of an earlier
step.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import numpy as np

from trimtab.analysis.series import StepSeries
from trimtab.log.reader import Log
from trimtab.values import Event

MAX_PASSES: Final = 8
"""Times that a log is gone over: once more for each attempt that went back and has not reached what was there."""


class Placed(NamedTuple):
    """An event of a run.

    Attributes:
        event: The event; it took place behind the step that it names.
        rank: The rank that recorded it.
    """

    event: Event
    rank: int


class _Stretch(NamedTuple):
    """Steps in a row that one attempt counts for: those from `first` on and before `end`; None: without a bound.

    `first` is the last step before its own: an attempt looks at the machine, and may evaluate, before its first step.
    """

    attempt: int
    first: int | None
    end: int | None

    def holds(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (self.end is None or step < self.end)


def events_in_order(log: Log, kinds: Collection[str], *, series: StepSeries, is_only_run: bool) -> Iterator[Placed]:
    """Events of some kinds, by the step behind which they took place.

    Args:
        log: The log.
        kinds: Which.
        series: The run.
        is_only_run: Whether the log holds no other run: then an event whose attempt is not known is of it.
    """
    for stretches in _passes(series):
        by_attempt: dict[int, list[_Stretch]] = {}
        for stretch in stretches:
            by_attempt.setdefault(stretch.attempt, []).append(stretch)
        for event, rank, attempt in log.event_stream(kinds):
            own = stretches if attempt is None and is_only_run else by_attempt.get(attempt or 0, ())
            if any(stretch.holds(event.step) for stretch in own):
                yield Placed(event, rank)


def side_places(log: Log, *, series: StepSeries) -> Iterator[tuple[int, int]]:
    """Entries of `Log.side_columns` that count, by step: the step, and the place in those columns."""
    side = log.side_columns()
    if not side.num_records:
        return
    by_step = []
    for stretches in _passes(series):
        for stretch in stretches:
            places = np.flatnonzero(side.attempt == stretch.attempt)
            steps = side.step[places]
            kept = (steps >= (stretch.first if stretch.first is not None else np.iinfo(np.int64).min)) & (
                steps < stretch.end if stretch.end is not None else True
            )
            order = np.argsort(steps[kept], kind="stable")
            by_step.append(zip(steps[kept][order].tolist(), places[kept][order].tolist(), strict=True))
    yield from heapq.merge(*by_step)


def _passes(series: StepSeries) -> list[list[_Stretch]]:
    """The stretches of a series by step, cut where an attempt follows a later one: in the log it stands before it."""
    begins = np.flatnonzero(np.diff(series.attempt, prepend=series.attempt[:1] - 1))
    attempts, firsts = series.attempt[begins].tolist(), series.step[begins].tolist()
    passes: list[list[_Stretch]] = []
    for place, attempt in enumerate(attempts):
        first = int(series.step[begins[place] - 1]) if place else None
        end = firsts[place + 1] if place + 1 < len(firsts) else None
        if not passes or attempt < passes[-1][-1].attempt:
            if len(passes) == MAX_PASSES:
                break
            passes.append([])
        passes[-1].append(_Stretch(attempt, first, end))
    return passes
