"""Tells apart the attempts of a run in a file that does not number them.

Enters: micro-batches and header lines in the order of the file. Leaves: the attempt of each row record. The next
attempt begins at a header line after a micro-batch, and where steps go back to a micro-batch that this attempt has
done; steps that merely stand in another order are one attempt. Shapes: R row records of a block of lines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class AttemptCounter:
    """Numbers attempts from 1 while a file is read.

    Attributes:
        number: The attempt that the newest micro-batch belongs to.
    """

    def __init__(self) -> None:
        self.number = 1
        self._newest_step: int | None = None
        self._done: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
        self._done_set: set[tuple[int, int]] | None = None

    def assign(
        self, *, place: NDArray[np.int64], step: NDArray[np.int64], micro: NDArray[np.int32], headers: list[int]
    ) -> NDArray[np.int32]:
        """The attempt of each record of the next block of lines.

        Args:
            place: (R,) line of each record in the block, ascending.
            step: (R,) its step.
            micro: (R,) its micro-batch.
            headers: Lines of the block that are headers, ascending.

        Returns:
            (R,) attempts.
        """
        num_records = place.size
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        place, step, micro = place[starts], step[starts], micro[starts]
        # Nearly every file has one header, at its very beginning: that needs no look at single lines.
        leading = [header for header in headers if not place.size or header < place[0]]
        if leading:
            self._begin_next()
            headers = headers[len(leading) :]
        ascends = bool(np.all(step[1:] >= step[:-1]))
        if ascends and step.size and self._newest_step is not None:
            ascends = int(step[0]) >= self._newest_step
        if ascends and not headers:
            self._remember(step, micro)
            return np.full(num_records, self.number, np.int32)

        attempts = self._assign_lines(place.tolist(), step.tolist(), micro.tolist(), headers)
        return np.repeat(np.array(attempts, np.int32), np.diff(starts, append=num_records))

    def _assign_lines(self, places: list[int], steps: list[int], micros: list[int], headers: list[int]) -> list[int]:
        attempts, waiting = [], list(reversed(headers))
        for place, step, micro in zip(places, steps, micros, strict=True):
            while waiting and waiting[-1] < place:
                waiting.pop()
                self._begin_next()
            goes_back = self._newest_step is not None and step < self._newest_step
            if goes_back and (step, micro) in self._done_pairs():
                self._begin_next()
            self._done_pairs().add((step, micro))
            self._newest_step = step if self._newest_step is None else max(step, self._newest_step)
            attempts.append(self.number)
        if waiting:
            self._begin_next()
        return attempts

    def _remember(self, step: NDArray[np.int64], micro: NDArray[np.int32]) -> None:
        if not step.size:
            return
        self._newest_step = int(step[-1])
        if self._done_set is None:
            self._done.append((step, micro))
        else:
            self._done_set.update(zip(step.tolist(), micro.tolist(), strict=True))

    def _done_pairs(self) -> set[tuple[int, int]]:
        """(step, micro) done in this attempt; made a set only where steps go backwards, which few files do."""
        if self._done_set is None:
            self._done_set = set()
            for step, micro in self._done:
                self._done_set.update(zip(step.tolist(), micro.tolist(), strict=True))
            self._done.clear()
        return self._done_set

    def _begin_next(self) -> None:
        """A second header before any micro-batch begins nothing new."""
        if self._newest_step is None:
            return
        self.number += 1
        self._newest_step, self._done_set = None, None
        self._done.clear()
