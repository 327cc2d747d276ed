"""What the events of a run tell of its attempts: how each began, what it stated, and how it ended.

Enters: a log. Leaves: `AttemptsTold`, in one pass over its events. Invariant: a log is believed no further than its
types: facts of another shape are told as such or left aside. Rank 0 speaks for attempts, each rank for its own end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.analysis import remarks
from trimtab.analysis.attempts import StepReading
from trimtab.errors import UsageError
from trimtab.log.parts import is_newest
from trimtab.log.rank_events import merged
from trimtab.log.reader import Log
from trimtab.log.source import RecordedEvent
from trimtab.resume.round_trip import ROUND_TRIP_EVENT
from trimtab.rules.schedule import SCHEDULE_EVENT, Schedule
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import Event
from trimtab.watched import WATCH_EVENT

IN_GOOD_ORDER: Final = "closed"
"""The reason of an event "end" of a run that was closed, and not ended by an exception."""

_MARKS: Final = ("resume", "end", "converted")
_RESUME_CHECK: Final = "resume_check"
_KINDS: Final = (*_MARKS, _RESUME_CHECK, SCHEDULE_EVENT, ROUND_TRIP_EVENT, WATCH_EVENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRates:
    """The learning rates that an attempt stated.

    Attributes:
        schedule: They; None where no schedule can be read of it.
        problem: Why not, as a clause; None where one can.
    """

    schedule: Schedule | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedWatch:
    """The watch that an attempt began with.

    Attributes:
        config: Its settings.
        watches_routers: Whether it taps any router; None where it does not say.
    """

    config: WatchConfig
    watches_routers: bool | None


@dataclass(slots=True, kw_only=True)
class AttemptsTold:
    """What events tell of attempts.

    Attributes:
        ends: By attempt the reason of its end, "" where that is no text; none for one that has not ended.
        schedules: By attempt what it stated.
        watches: Likewise of its watch; what it stated last.
        resumes: Attempt and step of each first step after a resume that was compared with the checkpoint's last ones.
        round_trips: Events "round_trip", in the order recorded.
        last_attempt: The last attempt that the log knows of, with steps or without.
        marks: What tells whether the run has ended, by time.
    """

    ends: dict[int, str] = field(default_factory=dict)
    schedules: dict[int, StatedRates] = field(default_factory=dict)
    watches: dict[int, StatedWatch] = field(default_factory=dict)
    resumes: set[tuple[int, int]] = field(default_factory=set)
    round_trips: list[RecordedEvent] = field(default_factory=list)
    last_attempt: int = 1
    marks: list[Event] = field(default_factory=list)

    @property
    def is_converted(self) -> bool:
        """Whether the log was made of another tool's, and nothing of it tells whether that run has ended."""
        return any(mark.kind == "converted" for mark in self.marks) and not any(
            mark.kind == "end" for mark in self.marks
        )

    def open_ends(self, log: Log, reading: StepReading) -> list[str]:
        """Who has not ended, a sentence each; none where all have, or the log would not tell."""
        would_tell = log.format == "run" or (log.format == "journal" and is_newest(Path(log.path)))
        return remarks.on_end(reading, events=self.marks) if would_tell and not self.is_converted else []

    def ends_of(self, attempt: int) -> list[Event]:
        """The events "end" of an attempt, of all its ranks: those between its begin and that of the next one."""
        ends, begun = list[Event](), 1
        for mark in self.marks:
            if mark.kind == "resume":
                begun = _attempt_of(mark, otherwise=begun + 1)
            elif mark.kind == "end" and begun == attempt:
                ends.append(mark)
        return ends

    def broken_ends(self, attempt: int) -> list[str]:
        """Reasons other than "closed" for which ranks ended an attempt, each once."""
        reasons = map(_reason, self.ends_of(attempt))
        return list(dict.fromkeys(reason for reason in reasons if reason != IN_GOOD_ORDER))


def read_attempts(log: Log) -> AttemptsTold:
    """Reads the events of a log, reports and evaluations aside.

    Raises:
        LogError: The log cannot be read any more.
    """
    told = AttemptsTold()
    marks: list[tuple[int, Event]] = []
    for event, rank, attempt in log.event_stream(_KINDS):
        if event.kind in _MARKS:
            marks.append((rank, event))
        if attempt is not None:
            told.last_attempt = max(told.last_attempt, attempt)
        if event.kind == ROUND_TRIP_EVENT:
            told.round_trips.append(RecordedEvent(event, rank, attempt))
        elif attempt is None:
            continue
        elif event.kind == "end":
            told.ends[attempt] = _reason(event)
        elif event.kind == SCHEDULE_EVENT:
            before, stated = told.schedules.get(attempt), _rates(event)
            told.schedules[attempt] = stated if before in (None, stated) else _two_of(attempt)
        elif event.kind == _RESUME_CHECK:
            told.resumes.add((attempt, event.step))
        elif event.kind == WATCH_EVENT:
            routers = event.facts.get("watches_routers")
            told.watches[attempt] = StatedWatch(
                config=WatchConfig.from_facts(event.facts)[0],
                watches_routers=routers if isinstance(routers, bool) else None,
            )
    told.marks = merged(marks)
    return told


def _attempt_of(mark: Event, *, otherwise: int) -> int:
    attempt = mark.facts.get("attempt")
    return attempt if type(attempt) is int else otherwise


def _reason(event: Event) -> str:
    reason = event.facts.get("reason")
    return reason if isinstance(reason, str) else ""


def _rates(event: Event) -> StatedRates:
    try:
        return StatedRates(schedule=Schedule.from_facts(event.facts))
    except UsageError as error:
        return StatedRates(schedule=None, problem=f"the schedule in the log cannot be read: {error}")


def _two_of(attempt: int) -> StatedRates:
    """The last word does not change what was asked for before it, and from which step on it holds nobody says."""
    return StatedRates(schedule=None, problem=f"attempt {attempt} stated two schedules that differ")
