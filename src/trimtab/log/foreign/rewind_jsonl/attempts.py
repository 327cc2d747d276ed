"""Tells apart the attempts of a run in a file that does not number them.

Enters: micro-batches and header lines in the order of the file. Leaves: the attempt of each row record. The next
attempt begins at a header line after a micro-batch, and where steps go back to a micro-batch that this attempt has
done; steps that merely stand in another order are one attempt. An attempt that went back and then leaps over what the
one before it had done, further than it goes from step to step, was none: some lines stood in the file again, and the
one before it goes on. Shapes: R row records of a block of lines.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class _Attempt:
    """What is known of one attempt."""

    number: int
    newest: int | None = None
    """Its largest step."""
    second: int | None = None
    """Its largest step but one."""
    pace: int = 0
    """The largest gap between two steps of it, as far as they ascend."""
    done: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = field(default_factory=list)
    done_set: set[tuple[int, int]] | None = None

    def add_ascending(self, step: NDArray[np.int64], micro: NDArray[np.int32]) -> None:
        if not step.size:
            return
        newest = int(step[-1])
        gaps = np.diff(step, prepend=step[0] if self.newest is None else self.newest)
        self.pace = max(self.pace, int(gaps.max()))
        if newest != self.newest:
            num_before = int(np.searchsorted(step, newest))
            self.second = int(step[num_before - 1]) if num_before else self.newest
            self.newest = newest
        if self.done_set is None:
            self.done.append((step, micro))
        else:
            self.done_set.update(zip(step.tolist(), micro.tolist(), strict=True))

    def add(self, step: int, micro: int) -> None:
        self.pairs().add((step, micro))
        if self.newest is None or step > self.newest:
            self.pace = 0 if self.newest is None else max(self.pace, step - self.newest)
            self.newest, self.second = step, self.newest
        elif step < self.newest and (self.second is None or step > self.second):
            self.second = step

    def pairs(self) -> set[tuple[int, int]]:
        """(step, micro) done so far; made a set only where steps go backwards, which few files do."""
        if self.done_set is None:
            self.done_set = set()
            for step, micro in self.done:
                self.done_set.update(zip(step.tolist(), micro.tolist(), strict=True))
            self.done.clear()
        return self.done_set


class AttemptCounter:
    """Numbers attempts from 1 while a file is read.

    Attributes:
        num_attempts: How many were begun.
        restarts: Those of them that are runs of their own.
    """

    def __init__(self) -> None:
        self.num_attempts = 1
        self.restarts: list[int] = []
        self._current = _Attempt(1)
        # Those whose newest step the current one has not reached since it went back, the oldest first.
        self._ahead: list[_Attempt] = []

    @property
    def open_attempts(self) -> set[int]:
        """Attempts that lines to come may belong to."""
        return {attempt.number for attempt in (self._current, *self._ahead)}

    def assign(
        self,
        *,
        place: NDArray[np.int64],
        step: NDArray[np.int64],
        micro: NDArray[np.int32],
        headers: list[int],
        restarts: Collection[int] = (),
    ) -> NDArray[np.int32]:
        """The attempt of each record of the next block of lines.

        Args:
            place: (R,) line of each record in the block, ascending.
            step: (R,) its step.
            micro: (R,) its micro-batch.
            headers: Lines of the block that are headers, ascending.
            restarts: Those of them that begin a run of its own.

        Returns:
            (R,) attempts.
        """
        num_records = place.size
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        place, step, micro = place[starts], step[starts], micro[starts]
        # Nearly every file has one header, at its very beginning: that needs no look at single lines.
        leading = [header for header in headers if not place.size or header < place[0]]
        if leading:
            self._begin_after_header(is_run=any(header in restarts for header in leading))
            headers = headers[len(leading) :]
        ascends = not self._ahead and bool(np.all(step[1:] >= step[:-1]))
        if ascends and step.size and self._current.newest is not None:
            ascends = int(step[0]) >= self._current.newest
        if ascends and not headers:
            self._current.add_ascending(step, micro)
            return np.full(num_records, self._current.number, np.int32)

        attempts = self._assign_lines(place.tolist(), step.tolist(), micro.tolist(), headers, restarts)
        return np.repeat(np.array(attempts, np.int32), np.diff(starts, append=num_records))

    def _assign_lines(
        self, places: list[int], steps: list[int], micros: list[int], headers: list[int], restarts: Collection[int]
    ) -> list[int]:
        attempts, waiting = [], list(reversed(headers))
        for place, step, micro in zip(places, steps, micros, strict=True):
            while waiting and waiting[-1] < place:
                self._begin_after_header(is_run=waiting.pop() in restarts)
            while self._ahead and self._leaps_to(step):
                self._current = self._ahead.pop()
            newest = self._current.newest
            if newest is not None and step < newest and (step, micro) in self._current.pairs():
                self._ahead.append(self._current)
                self._begin_next()
            self._current.add(step, micro)
            self._drop_what_was_reached()
            attempts.append(self._current.number)
        while waiting:
            self._begin_after_header(is_run=waiting.pop() in restarts)
        return attempts

    def _leaps_to(self, step: int) -> bool:
        """Whether `step` is further from the current attempt's newest than that goes, and what is ahead lies between.

        That is a step which the attempt ahead had done.
        """
        ahead, newest = self._ahead[-1], self._current.newest
        # An attempt that went back holds the micro-batch it went back to, and one is ahead by having got further.
        assert ahead.newest is not None
        assert newest is not None
        if step - newest <= self._current.pace:
            return False
        return step > ahead.newest or (step == ahead.newest and ahead.second is not None and ahead.second > newest)

    def _drop_what_was_reached(self) -> None:
        while self._ahead:
            ahead, newest = self._ahead[-1].newest, self._current.newest
            assert ahead is not None
            assert newest is not None
            if newest < ahead:
                return
            self._ahead.pop()

    def _begin_after_header(self, *, is_run: bool) -> None:
        """A second header before any micro-batch begins no attempt; it may still say that the one begun is a run."""
        if self._current.newest is not None:
            self._ahead.clear()
            self._begin_next()
        if is_run and self.num_attempts > 1 and self.num_attempts not in self.restarts[-1:]:
            self.restarts.append(self.num_attempts)

    def _begin_next(self) -> None:
        self.num_attempts += 1
        self._current = _Attempt(self.num_attempts)
