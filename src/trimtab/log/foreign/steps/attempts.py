"""Tells apart the runs and attempts of a log at step level, and puts together what stands twice.

    StepRecords in the order of the file -> stretches that ascend -> attempts -> one record an attempt and step

Enters: step records in the order of the file. Leaves: the same, each step once an attempt, with the attempt of each.
A stretch that goes back begins the next attempt: a run of its own where it begins at or before the first step of the
run, else a resumed one. Lines that went back and then leap over what was there begin none: they stood in the file late,
or again; nor does a single line between others. Invariants: of a step that stands twice in an attempt the last value of
each kind counts, and `num_doubles` says how often that was; what does two steps or more from the beginning of a run
on is a run of its own, wherever either of them ends.

Shapes: N records of the file, S records left.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.steps.records import UNCOUNTED, StepRecords
from trimtab.log.steps import UNKNOWN_REASON

MAX_RUNS: Final = 256
"""Runs told apart in one file, each of which is judged by itself; further ones count as attempts of the last."""

MAX_STRETCHES: Final = 16
"""Times that steps may go back in lines that stand late or again; with more of them an attempt is begun."""

MAX_LINES_A_STEP: Final = 8
"""Lines that may each hold a part of one step, where the first few steps of a stretch are looked at."""

PACE_STEPS: Final = 4
"""Steps from which the pace of what follows is taken, where nothing else tells it."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Begin(NamedTuple):
    """Where an attempt begins."""

    step: int
    place: int
    """Its line or entry."""
    is_run: bool
    """Whether it is a run of its own."""


class Attempts(NamedTuple):
    """Steps of a log, attempt by attempt.

    Attributes:
        records: (S) one record an attempt and step, ascending.
        attempt: (S,) int32, from 1.
        begins: One entry an attempt, in the order of the file.
        num_doubles: Losses left out because their step stands again in its attempt.
        first_double: Step and place of the first of them; None without any.
    """

    records: StepRecords
    attempt: NDArray[np.int32]
    begins: tuple[Begin, ...]
    num_doubles: int
    first_double: tuple[int, int] | None

    @property
    def restarts(self) -> tuple[int, ...]:
        """Attempts, after the first, that are runs of their own."""
        return tuple(number for number, begin in enumerate(self.begins[1:], start=2) if begin.is_run)


def find_attempts(records: StepRecords) -> Attempts:
    """Tells apart the attempts of a log and leaves one record a step in each."""
    attempt, begins = _attempts(records)
    order = np.lexsort((np.arange(records.num_records), records.step, attempt))
    ordered, of = records.take(order), attempt[order]
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = (of[1:] != of[:-1]) | (ordered.step[1:] != ordered.step[:-1])
    if is_first.all():
        return Attempts(ordered, of, begins, 0, None)

    starts = np.flatnonzero(is_first)
    is_double = _is_double(ordered.has_loss, starts)
    doubles = np.flatnonzero(is_double)
    first = doubles[np.argmin(ordered.place[doubles])] if doubles.size else None
    return Attempts(
        records=_last_values(ordered, starts),
        attempt=of[starts],
        begins=begins,
        num_doubles=int(doubles.size),
        first_double=None if first is None else (int(ordered.step[first]), int(ordered.place[first])),
    )


def _is_double(has_loss: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Losses whose step had one before; where a step stands in lines that each hold a part of it, nothing is double."""
    so_far = np.cumsum(has_loss)
    before = np.concatenate(([0], so_far[:-1]))
    of_earlier_steps = np.repeat(before[starts], np.diff(np.append(starts, has_loss.size)))
    return has_loss & (before > of_earlier_steps)


def _last_values(records: StepRecords, starts: NDArray[np.int64]) -> StepRecords:
    """For each stretch of one step the last value of each kind that was logged."""
    loss, has_loss = _last(records.loss, records.has_loss, starts)
    grad_norm, has_grad_norm = _last(records.grad_norm, records.has_grad_norm, starts)
    return StepRecords(
        step=records.step[starts],
        place=records.place[starts],
        loss=loss,
        has_loss=has_loss,
        grad_norm=grad_norm,
        has_grad_norm=has_grad_norm,
        lr=_last(records.lr, ~np.isnan(records.lr), starts)[0],
        loss_scale=_last(records.loss_scale, ~np.isnan(records.loss_scale), starts)[0],
        num_tokens=_last(records.num_tokens, records.num_tokens != UNCOUNTED, starts)[0],
        reason=_last(records.reason, records.reason != UNKNOWN_REASON, starts)[0],
    )


def _last(
    values: NDArray[_Scalar], has: NDArray[np.bool_], starts: NDArray[np.int64]
) -> tuple[NDArray[_Scalar], NDArray[np.bool_]]:
    """The last value that is there in each stretch, else its first entry; and whether any is there."""
    place = np.maximum.reduceat(np.where(has, np.arange(has.size), -1), starts)
    return values[np.where(place >= 0, place, starts)], place >= 0


class _Stretches:
    """The stretches of a log: lines that ascend, each of which begins where steps go back.

    Args:
        step: (N,) steps in the order of the file, at least one.
    """

    def __init__(self, step: NDArray[np.int64]) -> None:
        self.step = step
        self.start = np.flatnonzero(np.concatenate(([True], step[1:] < step[:-1])))
        self.end = np.append(self.start[1:], step.size)
        last: list[int] = step[self.end - 1].tolist()
        self.reached_in: list[int | None] = [None] * len(last)
        """For each stretch the next one that gets further than it did."""
        waiting: list[int] = []
        for number, newest in enumerate(last):
            while waiting and last[waiting[-1]] < newest:
                self.reached_in[waiting.pop()] = number
            waiting.append(number)

    def of(self, number: int) -> NDArray[np.int64]:
        """The steps of one stretch."""
        steps: NDArray[np.int64] = self.step[self.start[number] : self.end[number]]
        return steps


class _Attempt:
    """What the attempt under way has done.

    Attributes:
        furthest: The stretch with its newest step.
        newest: That step.
    """

    def __init__(self, number: int, steps: NDArray[np.int64]) -> None:
        self.furthest, self.newest = number, int(steps[-1])
        # Nearly every attempt is one stretch, which is sorted; parts go on where the one before ends.
        self._parts = [steps]
        self._newest_of_part = [self.newest]
        self._num_lines = [steps.size]
        self._late: set[int] = set()

    def has_done(self, step: int) -> bool:
        """Whether a step of no more than `newest` was done."""
        part = self._parts[bisect_left(self._newest_of_part, step)]
        return int(part[np.searchsorted(part, step)]) == step or step in self._late

    def num_behind(self, step: int) -> int:
        """How many lines stand at steps after this one, of no more than `newest`; late ones do not count."""
        at = bisect_left(self._newest_of_part, step)
        num_up_to = int(np.searchsorted(self._parts[at], step, side="right")) - self._parts[at].size
        return self._num_lines[-1] - self._num_lines[at] - num_up_to

    def take(self, number: int, steps: NDArray[np.int64]) -> None:
        """Takes a stretch of lines that stand late, or again, and what follows them."""
        num_over = int(np.searchsorted(steps, self.newest, side="right"))
        self._late.update(steps[:num_over].tolist())
        if num_over < steps.size:
            self.furthest, self.newest = number, int(steps[-1])
            self._parts.append(steps[num_over:])
            self._newest_of_part.append(self.newest)
            self._num_lines.append(self._num_lines[-1] + steps.size - num_over)


class _Reading:
    """Goes through the stretches of a log and puts each to an attempt."""

    def __init__(self, records: StepRecords) -> None:
        self._place = records.place
        self._stretches = _Stretches(records.step)
        self._attempt = _Attempt(0, self._stretches.of(0))
        self._run_begins = int(records.step[0])
        self._num_runs = 1
        self._looked_up_to = 0
        self.begins = [Begin(self._run_begins, int(records.place[0]), is_run=True)]

    def attempts(self) -> NDArray[np.int32]:
        """(N,) the attempt of each record; `begins` is complete then."""
        stretches, number = self._stretches, [1]
        stray_up_to = 0
        while len(number) < stretches.start.size:
            index = len(number)
            back_in = stretches.reached_in[self._attempt.furthest]
            if back_in is not None and index > stray_up_to and self._looked_up_to < back_in:
                # Looked at once: whatever of these lines begins an attempt, they do not all stand late.
                self._looked_up_to = back_in
                stray_up_to = back_in if self._are_stray(index, back_in) else stray_up_to
            steps = stretches.of(index)
            if index <= stray_up_to or self._is_late(steps, is_last=index == stretches.start.size - 1):
                self._attempt.take(index, steps)
            else:
                self._begin(index, steps)
            number.append(len(self.begins))
        return np.repeat(np.array(number, np.int32), stretches.end - stretches.start)

    def _are_stray(self, first: int, last: int) -> bool:
        """Whether lines that went back all stand late or again, so that what follows in stretch `last` goes on before.

        Then there is a leap: from them to what follows it is further than they go from step to step, and over as much
        of the attempt as half of their own number at least. What does again what a run began with is a run.
        """
        if last - first >= MAX_STRETCHES or any(map(self._is_run, range(first, last + 1))):
            return False
        stretches, newest = self._stretches, self._attempt.newest
        steps = stretches.of(last)
        num_over = int(np.searchsorted(steps, newest, side="right"))
        own = steps[:num_over]
        gaps = np.diff(own)
        pace = int(gaps.max()) if gaps.size else 0
        following = np.diff(steps[num_over : num_over + PACE_STEPS])
        if not pace and following.size and self._attempt.has_done(int(own[0])):
            # A run may be resumed at its last step but one; then it goes on at the same pace.
            pace = int(following.min())
        num_lines = int(stretches.start[last] - stretches.start[first]) + num_over
        num_leapt = self._attempt.num_behind(int(own[-1]))
        return num_leapt > 0 and int(steps[num_over]) - int(own[-1]) > pace and 2 * num_leapt >= num_lines

    def _is_run(self, number: int) -> bool:
        """Whether a stretch begins where the run did, or before, and goes over two of its steps or more."""
        steps = self._stretches.of(number)
        over = steps[: np.searchsorted(steps, self._attempt.newest, side="right")]
        return int(steps[0]) <= self._run_begins and np.unique(over[: 2 * MAX_LINES_A_STEP]).size >= 2

    def _is_late(self, steps: NDArray[np.int64], *, is_last: bool) -> bool:
        """Whether a stretch is one step that stands late or again; the last may be all that a new attempt has done."""
        num_over = int(np.searchsorted(steps, self._attempt.newest, side="right"))
        if int(steps[num_over - 1]) != int(steps[0]):
            return False
        if not self._attempt.has_done(int(steps[0])):
            return True
        return num_over == steps.size and not is_last

    def _begin(self, number: int, steps: NDArray[np.int64]) -> None:
        first, place = int(steps[0]), int(self._place[self._stretches.start[number]])
        is_run = first <= self._run_begins and self._num_runs < MAX_RUNS
        self._num_runs += is_run
        self._run_begins = first if is_run else self._run_begins
        self._attempt, self._looked_up_to = _Attempt(number, steps), 0
        self.begins.append(Begin(first, place, is_run=is_run))


def _attempts(records: StepRecords) -> tuple[NDArray[np.int32], tuple[Begin, ...]]:
    """The attempt of each record, and where each begins."""
    if not records.num_records:
        return np.empty(0, np.int32), ()
    reading = _Reading(records)
    return reading.attempts(), tuple(reading.begins)
