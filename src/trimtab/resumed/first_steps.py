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

from trimtab.notices import say, warn
from trimtab.resume.continuity import NUM_JUDGED, Break, SeenStep, judge_losses
from trimtab.resume.rates import judge_lrs
from trimtab.resume.row_order import RowsAround, begins_epoch, judge_rows, same_as_recorded
from trimtab.resumed.around import Expected
from trimtab.resumed.before import has_arrived, seen_step
from trimtab.values import Event, MicroBatch, StepRow

_MAX_ROWS: Final = 1 << 16


class FirstSteps:
    """Looks at the first steps of a resumed run, and says once what became of it.

    Args:
        expected: What they are compared with.
        rank: Whose they are.
        clock: Seconds since the epoch.

    Attributes:
        expected: What they are compared with.
    """

    def __init__(self, expected: Expected, *, rank: int, clock: Callable[[], float]) -> None:
        self.expected = expected
        self._rank = rank
        self._clock = clock
        self._judges_lr = True
        self._is_done = False
        self._steps: list[SeenStep] = []
        self._waiting: list[StepRow] = []
        self._rows: list[NDArray[np.int64]] = []
        self._num_rows = 0
        self._next_micro: tuple[int, int] | None = (expected.step, 0)
        """Place of the micro-batch that comes next; None once one is missing, and no more rows are taken."""

    def leave_lr_out(self) -> None:
        """Says that another learning rate was asked for."""
        self._judges_lr = False

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
        """Judges what there is of a run that ends, or is saved; may wait. Nothing where nothing was seen."""
        if self._is_done:
            return []
        self._steps += map(seen_step, self._waiting)
        self._waiting.clear()
        return self._end() if self._steps else []

    def _end(self) -> list[Event]:
        self._is_done = True
        breaks, compared = self._judge()
        at = self.expected.step
        whose = f" of rank {self._rank}" if self.expected.before.num_ranks > 1 else ""
        for found in breaks:
            warn("resume", f"Trimtab, resume at step {at}{whose}: {found.severity}: {found.text}.")
        if not breaks and compared and self._rank == 0:
            what = " and ".join([", ".join(compared[:-1]), compared[-1]]) if len(compared) > 1 else compared[0]
            verb = "continue" if len(compared) > 1 or compared == ["rows"] else "continues"
            say("resume", f"Trimtab, resume: {what} {verb} what came before step {at}.")
        self._rows.clear()
        self.expected = replace(self.expected, rows=RowsAround())
        if not compared:
            return []
        facts = {
            "num_steps": len(self._steps),
            "compared": compared,
            "findings": [found.to_dict() for found in breaks],
        }
        return [Event("resume_check", at, self._clock(), facts)]

    def _judge(self) -> tuple[list[Break], list[str]]:
        """What is broken, worst first, and what was compared."""
        expected, before = self.expected, self.expected.before
        resumed = self._steps
        if resumed[0].step != expected.step:  # a state of another checkpoint than that of the weights: its host says so
            return [], []
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, np.int64)
        found: list[Break] = []
        compared: list[str] = []
        # The state is that of rank 0, whose losses it tells; those of the others are in the log alone.
        losses = [seen.loss for seen in before.steps if seen.loss is not None] if self._rank == 0 else []
        same_rows = same_as_recorded(expected.rows, rows)
        recorded = self._recorded_loss() if same_rows else None
        if any(seen.loss is not None or seen.is_skipped for seen in resumed) and (losses or recorded is not None):
            compared.append("loss")
            starts = begins_epoch(expected.rows) if not expected.rows.is_empty else False
            found += judge_losses(losses, resumed, recorded=recorded, begins_epoch=starts)
        knows_lr = before.next_lr is not None or len(before.steps) > 2 or bool(expected.recorded)
        if self._judges_lr and self._rank == 0 and knows_lr and any(seen.lr is not None for seen in resumed):
            compared.append("learning rate")
            found += judge_lrs(before.steps, resumed, recorded=expected.recorded, next_lr=before.next_lr)
        if rows.size and not expected.rows.is_empty:
            compared.append("rows")
            found += judge_rows(expected.rows, rows, step=expected.step)
        order = ("critical", "warning", "notice")
        return sorted(found, key=lambda entry: order.index(entry.severity)), compared

    def _recorded_loss(self) -> float | None:
        first = next((seen for seen in self.expected.recorded if seen.step == self.expected.step), None)
        return first.loss if first is not None and not first.is_skipped else None

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
