"""`Judging`: a watch's rules, asked in whichever thread has the values; what the recorder's thread holds of a watch.

Enters: what a run records, in its order, and what was collected of it. Leaves: lines, findings and events of the log.
Invariants: rules are asked by one thread at a time; nothing is raised; nothing here leads to the run or to the user's
callback, so that a run which is thrown away is not kept by the thread that writes its log.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, Final, NamedTuple

from trimtab.notices import say, warn
from trimtab.recorder import reason_of
from trimtab.recorder.arrival import have_arrived
from trimtab.rules.health import HealthRules, judge_event
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import Event, StepRow
from trimtab.watched import (
    EVALUATION_EVENT,
    FINDING_EVENT,
    ROUTER_EVENT,
    VITALS_EVENT,
    RouterReport,
    Vitals,
    WatchFinding,
)
from trimtab.watched_json import report_to_facts, vitals_to_facts
from trimtab.watching.as_observed import observed_step
from trimtab.watching.sensors import RouterReading, VitalsReading
from trimtab.watching.telling import lines_of

_MOST_NOTES: Final = 20
"""Notes of reports that are said: of layers that are seen now and then, each report could have another."""


class Due(NamedTuple):
    """What was collected after a step, and is judged behind it.

    Attributes:
        step: The step (1-based).
        router: Of the routers; None: nothing was.
        vitals: Of the machine and the step; None likewise.
    """

    step: int
    router: RouterReading | None
    vitals: VitalsReading | None

    def is_ready(self) -> bool:
        """Whether asking for it does not wait."""
        return have_arrived((self.router, self.vitals))


class Judging:
    """Asks the rules, and tells what they find. An observer of the recorder.

    Args:
        config: Settings.
        rank: This process's place: 0 judges the run, others their own memory only.
        clock: Seconds since the epoch.

    Attributes:
        subject: What it looks at.
        is_off: Whether it has failed; it judges nothing any more then.
        num_said: Findings up to now.
        due: What was collected, in order of steps; put here before the step is recorded.
        found: Findings that the user's callback has not seen.
    """

    subject: Final = "the run's health"

    def __init__(self, config: WatchConfig, *, rank: int, clock: Callable[[], float]) -> None:
        self.is_off = False
        self.num_said = 0
        self.due: deque[Due] = deque()
        self.found: deque[WatchFinding] = deque()
        self._told_notes: set[str] = set()
        self._config = config
        self._rank = rank
        self._whose = f" on rank {rank}" if rank else ""
        self._clock = clock
        self._rules = HealthRules(config)
        # Held while a value is waited for: the training thread takes it only where it may wait itself.
        self._lock = RLock()

    def observe(self, items: Sequence[object]) -> list[Event]:
        """Judges what the run recorded, and what was collected meanwhile; waits for values that have not arrived.

        Returns:
            Events for the log: reports, vitals and findings.
        """
        with self._made() as made:
            for item in items:
                if isinstance(item, StepRow):
                    self._judge_step(item, made)
                elif isinstance(item, Event) and item.kind == EVALUATION_EVENT and not (self.is_off or self._rank):
                    self._tell(judge_event(self._rules, item).findings, made)
        return made

    def finish(self) -> list[Event]:
        """Judges what was collected and has no step behind it, as of a run that ends."""
        with self._made() as made:
            self._judge_due(made)
        return made

    def look_at(self, measure: Callable[[], Vitals]) -> list[Event]:
        """Judges vitals that are measured in the calling thread."""
        with self._made() as made:
            self._judge_vitals(measure(), made)
        return made

    def has_arrived(self, item: StepRow | Event) -> bool:
        """Whether `observe` does not wait for it, or for what is judged with it."""
        if isinstance(item, Event):
            return True
        return have_arrived(item) and all(due.is_ready() for due in tuple(self.due) if due.step <= item.step)

    def unhealthy_because(self) -> tuple[str, ...]:
        """Why a checkpoint that is saved now is none to go on from, a sentence each; may wait for a
        judgement in another thread.
        """
        with self._lock:
            return self._rules.unhealthy_because()

    def figures(self) -> dict[str, Any]:
        """What `HealthRules.figures` tells; may wait as `unhealthy_because`."""
        with self._lock:
            return self._rules.figures()

    def unhealthy_since(self) -> int | None:
        """The last step after which nothing of that was so, as far as is known; may wait as `standing`."""
        with self._lock:
            return self._rules.unhealthy_since()

    def state_dict(self) -> dict[str, Any]:
        """The state of the rules, plain values; may wait as `unhealthy_because`."""
        with self._lock:
            return self._rules.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; on a rank above 0 nothing is taken over, for a state is rank 0's.

        Raises:
            UsageError: The state is another's, or damaged; nothing has changed then.
        """
        self.check_state(state)
        with self._lock:
            self.due.clear()
            if self._rank == 0:
                self._rules.load_state_dict(state)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `load_state_dict` would refuse; changes nothing."""
        HealthRules(self._config).load_state_dict(state)

    def turn_off(self, error: Exception) -> None:
        """Judges nothing any more, and says once why."""
        if not self.is_off:
            self.is_off = True
            self.due.clear()
            _tell(warn, f"Trimtab watch off{self._whose}: {reason_of(error)}")

    # Within.

    @contextmanager
    def _made(self) -> Iterator[list[Event]]:
        """Events that are being made, by the one thread that may ask the rules; a fault ends the watch."""
        made: list[Event] = []
        with self._lock:
            try:
                yield made
            except Exception as error:  # noqa: BLE001 - a device that failed, a fault of ours: training goes on
                self.turn_off(error)

    def _judge_step(self, item: StepRow, made: list[Event]) -> None:
        if self.is_off:
            return
        if self._rank == 0:
            observed = observed_step(item)
            if observed is not None:
                self._tell(self._rules.step(observed), made)
        self._judge_due(made, last=item.step)

    def _judge_due(self, made: list[Event], *, last: int | None = None) -> None:
        """Judges what was collected up to a step; None: all."""
        while self.due and (last is None or self.due[0].step <= last):
            due = self.due.popleft()
            if due.router is not None:
                report = due.router.report()
                self._judge_event(Event(ROUTER_EVENT, due.step, self._clock(), report_to_facts(report)), made)
                self._tell_notes(report)
            if due.vitals is not None:
                self._judge_vitals(due.vitals.vitals(), made)

    def _judge_vitals(self, vitals: Vitals, made: list[Event]) -> None:
        if self.is_off:
            return
        if self._rank == 0:
            self._judge_event(Event(VITALS_EVENT, vitals.step, self._clock(), vitals_to_facts(vitals)), made)
        else:  # what is not this process's own is alike on all ranks
            self._tell(self._rules.vitals(replace(vitals, update_ratio={}, attention_logit=None)), made)

    def _judge_event(self, event: Event, made: list[Event]) -> None:
        """Puts an event into the log, and judges it as it stands there."""
        made.append(event)
        self._tell(judge_event(self._rules, event).findings, made)

    def _tell_notes(self, report: RouterReport) -> None:
        """Says once each what could not be measured: of that nothing is ever found."""
        for note in report.notes:
            if note not in self._told_notes and len(self._told_notes) < _MOST_NOTES:
                self._told_notes.add(note)
                _tell(warn, f"Trimtab, step {report.step}: routers: {note}.")

    def _tell(self, findings: Sequence[WatchFinding], made: list[Event]) -> None:
        for finding in findings:
            made.append(Event(FINDING_EVENT, finding.step, self._clock(), finding.to_dict()))
            self.num_said += 1
            self.found.append(finding)
        for level, line in lines_of(findings, whose=self._whose):
            _tell(partial(say, level=level), line)


def _tell(tell: Callable[[str, str], None], line: str) -> None:
    # A handler of the user's that raises must cost neither the watch nor the run.
    with contextlib.suppress(Exception):
        tell("watch", line)
