"""Finds micro-batches that stand in a file twice, word for word, inside one step.

Enters: the lines of micro-batches in the order of the file. Leaves: those that repeat another. Invariant: no rows are
lost by leaving these out. A line of the same step and micro-batch that differs is no repeat: another rank wrote it.
Memory is the lines of one step. Shapes: L lines of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class RepeatFinder:
    """Looks through a file, block by block."""

    def __init__(self) -> None:
        self._newest: tuple[int, int] | None = None
        self._lines_of_step: set[str] = set()

    def find(
        self,
        *,
        place: NDArray[np.int64],
        step: NDArray[np.int64],
        micro: NDArray[np.int32],
        texts: Sequence[str],
        headers: Sequence[int],
    ) -> list[int]:
        """Lines of the next block that repeat a line which stands before them in the same stretch of one step.

        Args:
            place: (L,) place of each micro-batch's line in `texts`, ascending.
            step: (L,) its step.
            micro: (L,) its micro-batch.
            texts: The lines of the block.
            headers: Places of header lines: what stands again after one belongs to another attempt.

        Returns:
            Their places, ascending.
        """
        if not place.size:
            if headers:
                self._newest = None
            return []
        ascends = np.all((step[1:] > step[:-1]) | ((step[1:] == step[:-1]) & (micro[1:] > micro[:-1])))
        if self._newest is not None:
            ascends &= (int(step[0]), int(micro[0])) > self._newest
        if ascends and not headers:
            # Nothing stands twice here, as in nearly every file; what comes next may repeat the last step's lines.
            begin = int(np.searchsorted(step, step[-1]))
            self._remember((int(step[-1]), int(micro[-1])), {texts[at].strip() for at in place[begin:].tolist()})
            return []
        return self._find_one_by_one(place.tolist(), step.tolist(), micro.tolist(), texts, headers)

    def _find_one_by_one(
        self, places: list[int], steps: list[int], micros: list[int], texts: Sequence[str], headers: Sequence[int]
    ) -> list[int]:
        repeats, waiting = [], sorted(headers, reverse=True)
        for place, step, micro in zip(places, steps, micros, strict=True):
            while waiting and waiting[-1] < place:
                waiting.pop()
                self._newest = None
            text = texts[place].strip()
            if self._newest is not None and self._newest[0] == step and text in self._lines_of_step:
                repeats.append(place)
            self._remember((step, micro), {text})
        if waiting:
            self._newest = None
        return repeats

    def _remember(self, newest: tuple[int, int], lines: set[str]) -> None:
        """Takes in lines of the step in `newest`; of one step the largest micro-batch seen stays."""
        if self._newest is not None and self._newest[0] == newest[0]:
            self._newest = max(self._newest, newest)
            self._lines_of_step |= lines
        else:
            self._newest, self._lines_of_step = newest, lines
