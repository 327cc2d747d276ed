"""What a watch would have said, and what it did say, from the log of a run alone.

    step records, events, columns of other tools -> one order -> HealthRules -> Health

Enters: a log and the series of its runs. Leaves: findings, worst first, and what the routers looked like. Invariants:
rules and settings are those of the watch, fed in the order in which it was; what `rewind` tells of steps (gradient
norms that jump, losses that are 0.0 by mistake) is not told here again; of what the log alone cannot show, a watch's
own word counts. A report of routers is judged and let go.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trimtab.analysis.attempts import StepReading
from trimtab.analysis.health_order import Placed, events_in_order, side_places
from trimtab.analysis.health_said import said_finding, with_said
from trimtab.analysis.observed_steps import HealthSteps
from trimtab.analysis.router_reports import MAX_NOTES, read_side, report_of, side_report, summary
from trimtab.analysis.several_runs import JudgedRun
from trimtab.analysis.unhealthy import Stretches, Unhealthy
from trimtab.analysis.watched_stretch import WatchedStretch
from trimtab.errors import UsageError
from trimtab.log.columns import SideColumns
from trimtab.log.reader import Log
from trimtab.router_summary import RouterSummary
from trimtab.rules.health import HealthRules, JudgedEvent, ObservedStep, judge_event
from trimtab.rules.said import Standing
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import Event
from trimtab.watched import (
    EVALUATION_EVENT,
    FINDING_EVENT,
    ROUTER_EVENT,
    SEVERITIES,
    VITALS_EVENT,
    WATCH_EVENT,
    RouterReport,
    WatchFinding,
)

MAX_FINDINGS: Final = 1_000
"""Findings listed at most."""

MAX_LAYERS_JUDGED: Final = 50_000
"""Layers of reports that are judged again, 0.1 ms each: 14 layers every 50 steps are those of 178,000 steps. From there
on the watch's own word counts, and figures are read of the last report alone."""

LARGE_EVENTS: Final = (ROUTER_EVENT, VITALS_EVENT)
"""Kinds that are read one by one only: with the counts of every expert they are the largest part of a log."""

_KINDS: Final = (EVALUATION_EVENT, ROUTER_EVENT, VITALS_EVENT, FINDING_EVENT, WATCH_EVENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtEnd:
    """A run at its end.

    Attributes:
        findings: All that were made in it, in the order in which they were.
        standing: Those that are not over, as they were seen last, and since when they stand.
        evaluations: By the dataset's name ("" where there is one only) `best`, `best_step` and `num_worse`.
        stretch: What its watch left of the stretch that was asked for.
    """

    findings: tuple[WatchFinding, ...] = ()
    standing: tuple[Standing, ...] = ()
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stretch: WatchedStretch = field(default_factory=WatchedStretch)


class Health(NamedTuple):
    """What was found in all runs of a log.

    Attributes:
        findings: Critical, warning, notice, then by step; at most `MAX_FINDINGS`.
        num_left_out: How many were cut.
        router: The last report; None where there is none.
        router_at_finding: The report at which the first finding about routers was made, if that is another one.
        notices: What could not be judged, or was judged in another way than it stands there.
        unhealthy: What speaks against checkpoints of the last run.
        at_end: The last run at its end.
    """

    findings: tuple[WatchFinding, ...]
    num_left_out: int
    router: RouterSummary | None
    router_at_finding: RouterSummary | None
    notices: tuple[str, ...]
    unhealthy: tuple[Unhealthy, ...] = ()
    at_end: AtEnd = AtEnd()


def judge_health(log: Log, runs: Sequence[JudgedRun], *, stretch: tuple[int, int] = (1, 0)) -> Health:
    """Judges the health of each run of a log, from a history of its own.

    Args:
        log: The log.
        runs: Its runs.
        stretch: First and last step of the stretch of the last run that is of interest; none of them by default. Its
            reports are judged before all others where there are too many to judge.

    Raises:
        LogError: The log cannot be read any more.
    """
    steps, side = HealthSteps(log), log.side_columns()
    judged = [
        _judge(
            log,
            run.reading,
            steps=steps,
            side=side,
            is_only_run=len(runs) == 1,
            stretch=WatchedStretch(*stretch) if run is runs[-1] else WatchedStretch(),
        )
        for run in runs
    ]
    found = [
        finding if run.number is None else dataclasses.replace(finding, text=f"run {run.number}: {finding.text}")
        for run, one in zip(runs, judged, strict=True)
        for finding in one.findings
    ]
    found.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.step))
    last = next((one for one in reversed(judged) if one.last is not None), judged[-1])
    notices = dict.fromkeys(notice for one in judged for notice in one.notices)
    if len(runs) > 1 and any(attempt is None for _, _, attempt in log.event_stream((EVALUATION_EVENT,))):
        notices["evaluations are not judged: of which of the runs in this file each of them is, it does not tell"] = (
            None
        )
    return Health(
        findings=tuple(found[:MAX_FINDINGS]),
        num_left_out=max(0, len(found) - MAX_FINDINGS),
        router=None if last.last is None else summary(last.last, first=last.named, notes=last.notes),
        router_at_finding=last.at_finding if last.at_finding_step != _step_of(last.last) else None,
        notices=tuple(notices),
        unhealthy=judged[-1].unhealthy,
        at_end=judged[-1].at_end,
    )


class _Judged:
    """One run, while it is judged.

    Args:
        stretch: The steps of it that are of interest.
    """

    def __init__(self, stretch: WatchedStretch) -> None:
        self.stretch = stretch
        self.rules = HealthRules()
        self.findings: list[WatchFinding] = []
        self.said: list[WatchFinding] = []
        self.last: RouterReport | None = None
        self.named: tuple[str, ...] = ()
        self.notes: dict[str, None] = {}
        """What could not be measured, each once."""
        self.at_finding: RouterSummary | None = None
        self.notices: list[str] = []
        self.unjudged_from: int | None = None
        """The step from which reports of routers are no longer judged."""
        self._unread: Event | None = None
        """The newest report of those."""
        self.unhealthy: tuple[Unhealthy, ...] = ()
        self._stretches = Stretches()
        self._num_layers = 0
        """Layers judged, of reports outside of the stretch."""
        self._rank: int | None = None

    @property
    def at_finding_step(self) -> int | None:
        """The step of the first finding about routers."""
        return None if self.at_finding is None else self.at_finding.step

    @property
    def at_end(self) -> AtEnd:
        """What is known of it now that all was taken."""
        evaluations = self.rules.figures()["evaluations"]
        standing = self.rules.stands()
        return AtEnd(findings=tuple(self.findings), standing=standing, evaluations=evaluations, stretch=self.stretch)

    def take(self, placed: Placed) -> None:
        """Judges one event of the log."""
        event = placed.event
        if event.kind == FINDING_EVENT:
            said = said_finding(placed)
            self.said += [] if said is None else [said]
            return
        # The first rank that has any: what all of them see they all record.
        self._rank = placed.rank if self._rank is None else self._rank
        if placed.rank != self._rank:
            return
        self.stretch.take(event)
        if event.kind == ROUTER_EVENT and self._are_too_many(event.step):
            self.unjudged_from = event.step if self.unjudged_from is None else self.unjudged_from
            self._unread = event
            if self.stretch.holds(event.step):
                self.stretch.take_report(report_of(event))
        elif event.kind == WATCH_EVENT:
            self._settings(event)
        else:
            self._keep(judge_event(self.rules, event), step=event.step)

    def router(self, report: RouterReport) -> None:
        """Judges a report of the routers that is made of another tool's columns."""
        self._keep(JudgedEvent(self.rules.router(report), report), step=report.step)

    def end(self, notices: Sequence[str]) -> None:
        """Puts together what the log shows and what a watch said; `notices` are on how the log was read."""
        self.notices += notices
        if self._unread is not None:
            self.last = report_of(self._unread)
            self.notices.append(
                f"reports of routers from step {self.unjudged_from} on are not judged again, there are too many: what "
                "the watch said of them is told"
            )
        of_log = set(map(id, self.findings))
        self.findings = with_said(self.findings, self.said, trusted_from=self.unjudged_from)
        self.unhealthy = self._stretches.found([one for one in self.findings if id(one) not in of_log])

    def _keep(self, judged: JudgedEvent, *, step: int) -> None:
        self.findings += judged.findings
        self._stretches.look(step, self.rules.standing())
        report = judged.report
        if report is None:
            return
        if not self.stretch.holds(report.step):
            self._num_layers += len(report.layers)
        self._unread, self.last = None, report
        self.stretch.take_report(report)
        self.notes = dict.fromkeys((*self.notes, *report.notes)) if report.notes else self.notes
        while len(self.notes) > MAX_NOTES:
            self.notes.popitem()
        names = tuple(dict.fromkeys(name for finding in judged.findings for name in finding.layers))
        self.named = tuple(dict.fromkeys((*self.named, *names)))
        if judged.findings and self.at_finding is None:
            self.at_finding = summary(report, first=names, notes=self.notes)

    def _are_too_many(self, step: int) -> bool:
        """Whether enough was judged of the reports in the stretch, or of the others, whichever this step is of."""
        num_layers = self.stretch.num_layers if self.stretch.holds(step) else self._num_layers
        return num_layers >= MAX_LAYERS_JUDGED

    def _settings(self, event: Event) -> None:
        """A watch began: it goes on with what was known, by settings of its own."""
        config, wrong = WatchConfig.from_facts(event.facts)
        if wrong:
            self.notices.append(
                f"the watch's {', '.join(wrong)} in the log cannot be: judged by the default in their place"
            )
        rules = HealthRules(config)
        with contextlib.suppress(UsageError):  # a number that no state holds: the history then starts anew
            rules.load_state_dict(self.rules.state_dict())
        self.rules = rules


def _judge(
    log: Log,
    reading: StepReading,
    *,
    steps: HealthSteps,
    side: SideColumns,
    is_only_run: bool,
    stretch: WatchedStretch,
) -> _Judged:
    """Feeds the rules with one run."""
    series, judged = reading.series, _Judged(stretch)
    read = read_side(side)
    observed = steps.of_run(series, side=side)
    ahead: ObservedStep | None = None
    has_begun, first_step = False, 1
    for after, what in _merged(log, reading, is_only_run=is_only_run):
        if not has_begun:
            ahead, has_begun = next(observed, None), True
        while ahead is not None and ahead.step <= after:
            judged.findings += judged.rules.step(ahead)
            ahead = next(observed, None)
        if isinstance(what, Placed):
            judged.take(what)
            continue
        report = side_report(read, what, step=after, first_step=min(first_step, after))
        if report is not None:
            judged.router(report)
            first_step = after + 1
    # Behind the last evaluation quiet steps say nothing: of a log without any they are not even read.
    if not has_begun and not steps.is_quiet:
        ahead = next(observed, None)
    while ahead is not None and not steps.is_quiet:
        judged.findings += judged.rules.step(ahead)
        ahead = next(observed, None)
    judged.end(read.notices)
    return judged


def _merged(log: Log, reading: StepReading, *, is_only_run: bool) -> Iterator[tuple[int, Placed | int]]:
    """Events and entries of another tool's log, by the step behind which they took place; entries first."""
    entries = side_places(log, series=reading.series)
    ahead = next(entries, None)
    for placed in events_in_order(log, _KINDS, series=reading.series, is_only_run=is_only_run):
        while ahead is not None and ahead[0] <= placed.event.step:
            yield ahead
            ahead = next(entries, None)
        yield placed.event.step, placed
    while ahead is not None:
        yield ahead
        ahead = next(entries, None)


def _step_of(report: RouterReport | None) -> int | None:
    return None if report is None else report.step
