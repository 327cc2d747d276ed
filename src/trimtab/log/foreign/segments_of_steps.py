"""Tells apart the runs and attempts of a log at step level, and puts together what stands twice.

    StepRecords in the order of the file -> stretches that ascend -> attempts -> one record an attempt and step

Enters: step records in the order of the file. Leaves: the same, each step once an attempt, with the attempt of each.
A stretch that goes back to a step that its attempt has done, or back over two steps or more, begins the next attempt:
a run of its own where it begins at or before the first step of the run, else a resumed one. One that went back and
then leaps over what was there was none: some lines stood in the file late, or again. Invariant: of a step that stands
twice in an attempt the last value of each kind counts, and `doubles` says how often that was.

Shapes: N records of the file, S records left.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.step_records import UNCOUNTED, StepRecords
from trimtab.log.steps import UNKNOWN_REASON

MAX_RUNS: Final = 256
"""Runs told apart in one file, each of which is judged by itself; further ones count as attempts of the last."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Begin(NamedTuple):
    """Where an attempt begins."""

    step: int
    place: int
    """Its line or entry."""
    is_run: bool
    """Whether it is a run of its own."""


class Segments(NamedTuple):
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


def find_segments(records: StepRecords) -> Segments:
    """Tells apart the attempts of a log and leaves one record a step in each."""
    attempt, begins = _attempts(records)
    order = np.lexsort((np.arange(records.num_records), records.step, attempt))
    ordered, of = records.take(order), attempt[order]
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = (of[1:] != of[:-1]) | (ordered.step[1:] != ordered.step[:-1])
    if is_first.all():
        return Segments(ordered, of, begins, 0, None)

    starts = np.flatnonzero(is_first)
    is_double = _is_double(ordered.has_loss, starts)
    doubles = np.flatnonzero(is_double)
    first = doubles[np.argmin(ordered.place[doubles])] if doubles.size else None
    return Segments(
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


class _Attempt:
    """What the attempt under way has done."""

    def __init__(self, steps: NDArray[np.int64]) -> None:
        self.newest = int(steps[-1])
        # Nearly every attempt is one stretch, which is sorted; a set is made of what came to it late.
        self._steps = steps
        self._late: set[int] = set()

    def has_done(self, step: int) -> bool:
        index = int(np.searchsorted(self._steps, step))
        return (index < self._steps.size and int(self._steps[index]) == step) or step in self._late

    def goes_on_with(self, steps: NDArray[np.int64]) -> bool:
        """Whether a stretch that goes back is no attempt of its own, but lines of this one that stand late or again."""
        num_over = int(np.searchsorted(steps, self.newest, side="right"))
        if not self.has_done(int(steps[0])):
            return num_over < 2
        return num_over < steps.size and int(steps[num_over - 1]) < self.newest

    def take(self, steps: NDArray[np.int64]) -> None:
        self._late.update(steps.tolist())
        self.newest = max(self.newest, int(steps[-1]))


def _attempts(records: StepRecords) -> tuple[NDArray[np.int32], tuple[Begin, ...]]:
    """The attempt of each record, and where each begins."""
    step = records.step
    if not step.size:
        return np.empty(0, np.int32), ()
    starts = np.flatnonzero(np.concatenate(([True], step[1:] < step[:-1])))
    ends = np.append(starts[1:], step.size)
    current = _Attempt(step[: ends[0]])
    run_begins = int(step[0])
    begins = [Begin(run_begins, int(records.place[0]), is_run=True)]
    number, num_runs = np.ones(starts.size, np.int32), 1
    for index, (start, end) in enumerate(zip(starts[1:].tolist(), ends[1:].tolist(), strict=True), start=1):
        steps = step[start:end]
        if current.goes_on_with(steps):
            current.take(steps)
        else:
            current = _Attempt(steps)
            first = int(steps[0])
            is_run = first <= run_begins and num_runs < MAX_RUNS
            num_runs += is_run
            run_begins = first if is_run else run_begins
            begins.append(Begin(first, int(records.place[start]), is_run=is_run))
        number[index] = len(begins)
    return np.repeat(number, ends - starts), tuple(begins)
