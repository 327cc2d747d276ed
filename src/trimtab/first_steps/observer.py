"""Looks at the first steps of a resumed run: whether they continue what came before the checkpoint.

Enters: what is expected, and then what the run records. Leaves: one event `resume_check`, and a line: that the run
goes on, or one for each `Break`. Invariants: nothing here waits in a training step, or holds more rows than a few steps
have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.first_steps.as_numbers import has_arrived, seen_step
from trimtab.notices import say, warn
from trimtab.resume import losses, rates, row_order
from trimtab.resume.around import Around, Judged, RowsAround, Seen
from trimtab.resume.breaks import NUM_JUDGED, SeenStep
from trimtab.values import Event, MicroBatch, StepRow
from trimtab.watched import SEVERITIES

CHECKS: Final = (losses.judge, rates.judge, row_order.judge)
"""What is compared, in the order told."""

_MAX_ROWS: Final = 1 << 16


class FirstSteps:
    """Looks at the first steps of a resumed run, and says once what became of it.

    Args:
        around: What they are compared with.
        was_rebased: Tells whether another learning rate was asked for; asked when the steps are judged.
        clock: Seconds since the epoch.

    Attributes:
        around: What they are compared with.
        subject: What it looks at.
    """

    subject: Final = "the first steps"

    def __init__(self, around: Around, *, was_rebased: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.around = around
        self._was_rebased = was_rebased
        self._clock = clock
        self._is_done = False
        self._steps: list[SeenStep] = []
        self._waiting: list[StepRow] = []
        self._rows: list[NDArray[np.int64]] = []
        self._num_rows = 0
        self._next_micro: tuple[int, int] | None = (around.step, 0)
        """Place of the micro-batch that comes next; None once one is missing, and no more rows are taken."""

    def observe(self, items: Sequence[object]) -> list[Event]:
        """Takes what the run recorded; waits for values that are not on the host yet.

        Returns:
            The event, once enough has been seen, else nothing.
        """
        for item in items:
            if self._is_done:
                break
            if isinstance(item, MicroBatch):
                self._take_rows(item)
            elif isinstance(item, StepRow):
                self._steps.append(seen_step(item))
            if len(self._steps) >= NUM_JUDGED:
                return self._end()
        return []

    def put_step(self, item: StepRow) -> None:
        """Takes a step of a run that is not recorded; never waits, and says what there is to say when it can."""
        if self._is_done:
            return
        if len(self._waiting) < NUM_JUDGED:
            self._waiting.append(item)
        elif all(map(has_arrived, self._waiting)):
            self.finish()

    def finish(self) -> list[Event]:
        """Judges what there is, as of a run that ends; may wait. Nothing where nothing was seen."""
        if self._is_done:
            return []
        self._steps += map(seen_step, self._waiting)
        self._waiting.clear()
        return self._end() if self._steps else []

    def _end(self) -> list[Event]:
        self._is_done = True
        judged = self._judge()
        at = self.around.step
        breaks = sorted(
            (found for one in judged for found in one.breaks), key=lambda found: SEVERITIES.index(found.severity)
        )
        whose = f" of rank {self.around.rank}" if self.around.before.num_ranks > 1 else ""
        for found in breaks:
            warn("resume", f"Trimtab, resume at step {at}{whose}: {found.severity}: {found.text}.")
        compared = [one.what for one in judged if one.left_out is None]
        left_out = {one.what: one.left_out for one in judged if one.left_out is not None}
        remarks = [one.remark for one in judged if one.remark is not None]
        if self.around.rank == 0:
            goes_on = _continues(compared, step=at) if compared and not breaks else None
            rest = [*(f"{what} not compared: {why}" for what, why in left_out.items()), *remarks]
            if goes_on is not None or rest:
                at_step = "" if goes_on is not None else f" at step {at}"
                told = "; ".join([*([goes_on] if goes_on is not None else []), *rest])
                say("resume", f"Trimtab, resume{at_step}: {told}.")
        self._rows.clear()
        self.around = replace(self.around, rows=RowsAround())
        if not compared:
            return []
        facts = {
            "num_steps": len(self._steps),
            "compared": compared,
            "not_compared": left_out,
            "findings": [found.to_dict() for found in breaks],
        }
        return [Event("resume_check", at, self._clock(), facts)]

    def _judge(self) -> list[Judged]:
        """What each check found, of those that are this rank's."""
        if self._steps[0].step != self.around.step:  # a state of another checkpoint than the weights': its host says so
            return []
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, np.int64)
        around, seen = replace(self.around, was_rebased=self._was_rebased()), Seen(steps=tuple(self._steps), rows=rows)
        return [found for check in CHECKS if (found := check(around, seen)) is not None]

    def _take_rows(self, item: MicroBatch) -> None:
        if self._next_micro is None or self._num_rows >= _MAX_ROWS:
            return
        step, micro = self._next_micro
        if (item.step, item.micro) != (step, micro) and not (micro and (item.step, item.micro) == (step + 1, 0)):
            self._next_micro = None  # the disk was slow, and one found no room: what comes after it proves nothing
            return
        self._next_micro = (item.step, item.micro + 1)
        rows = np.asarray(item.rows).astype(np.int64).reshape(-1)
        if item.packed:
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
        self._rows.append(rows)
        self._num_rows += rows.size


def _continues(compared: Sequence[str], *, step: int) -> str:
    what = " and ".join([", ".join(compared[:-1]), compared[-1]]) if len(compared) > 1 else compared[0]
    verb = "continue" if len(compared) > 1 or compared[0] == "rows" else "continues"
    return f"{what} {verb} what came before step {step}"
