"""Finds micro-batches that stand in an attempt twice.

Enters: the lines of micro-batches in the order of the file, and the attempt of each. Leaves: those that repeat another
word for word; and how many are of a micro-batch that another line is of too, and differ: another rank wrote them, or a
long micro-batch goes on there. Invariant: no rows are lost by leaving repeats out. What goes back to an earlier step
begins an attempt, so a repeat is of the newest step of its own: memory is the hashes of the lines of one step, for each
attempt that lines to come may belong to. Shapes: L lines of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class _Newest:
    """The newest step of an attempt."""

    step: int
    micros: set[int] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)
    """Hashes: of the few lines of a step no two are alike by chance, and a line may have megabytes."""

    def add(self, micro: int, text: str) -> None:
        self.micros.add(micro)
        self.lines.add(hash(text))


class RepeatFinder:
    """Looks through a file, block by block.

    Attributes:
        num_joined: Lines so far that share their micro-batch with a line before them, and differ from it.
    """

    def __init__(self) -> None:
        self.num_joined = 0
        self._newest: dict[int, _Newest] = {}

    def find(
        self,
        *,
        place: NDArray[np.int64],
        attempt: NDArray[np.int32],
        step: NDArray[np.int64],
        micro: NDArray[np.int32],
        texts: Sequence[str],
        open_attempts: AbstractSet[int],
    ) -> list[int]:
        """Lines of the next block that repeat a line which stands before them in the same step of the same attempt.

        Args:
            place: (L,) place of each micro-batch's line in `texts`, ascending.
            attempt: (L,) its attempt.
            step: (L,) its step.
            micro: (L,) its micro-batch.
            texts: The lines of the block.
            open_attempts: Attempts that lines of later blocks may belong to.

        Returns:
            Their places, ascending.
        """
        repeats: list[int] = []
        if place.size and not self._take_ascending(place, attempt, step, micro, texts):
            repeats = self._find_one_by_one(place.tolist(), attempt.tolist(), step.tolist(), micro.tolist(), texts)
        self._newest = {number: newest for number, newest in self._newest.items() if number in open_attempts}
        return repeats

    def _take_ascending(
        self,
        place: NDArray[np.int64],
        attempt: NDArray[np.int32],
        step: NDArray[np.int64],
        micro: NDArray[np.int32],
        texts: Sequence[str],
    ) -> bool:
        """Takes in a block in which nothing stands twice, as in nearly every file; False if it may be another."""
        number, last = int(attempt[0]), int(step[-1])
        newest = self._newest.get(number)
        if newest is not None and (int(step[0]), int(micro[0])) <= (newest.step, max(newest.micros)):
            return False
        ascends = (step[1:] > step[:-1]) | ((step[1:] == step[:-1]) & (micro[1:] > micro[:-1]))
        if not ascends.all() or (attempt != number).any():
            return False
        # What comes next may repeat the lines of the last step.
        if newest is None or newest.step < last:
            newest = self._newest[number] = _Newest(last)
        begin = int(np.searchsorted(step, last))
        for at, of in zip(place[begin:].tolist(), micro[begin:].tolist(), strict=True):
            newest.add(of, texts[at].strip())
        return True

    def _find_one_by_one(
        self, places: list[int], attempts: list[int], steps: list[int], micros: list[int], texts: Sequence[str]
    ) -> list[int]:
        repeats = []
        for place, attempt, step, micro in zip(places, attempts, steps, micros, strict=True):
            newest = self._newest.get(attempt)
            if newest is None or newest.step < step:
                newest = self._newest[attempt] = _Newest(step)
            if newest.step > step:
                continue
            text = texts[place].strip()
            if hash(text) in newest.lines:
                repeats.append(place)
                continue
            self.num_joined += micro in newest.micros
            newest.add(micro, text)
        return repeats
