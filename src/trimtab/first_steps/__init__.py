"""How a run goes on after a resume: its last losses, rates and rows against the first ones after the checkpoint.

Enters: steps as a run records them; the state of a run and its log, when it is resumed. Leaves: what the next state
tells of the last steps; of a resumed run one event `resume_check` and a line. Invariants: the log is read once, when
the state is loaded; nothing here waits in a training step, or raises into training.

```
  load_state_dict -> read_log -> FirstSteps                    before training
  recorder's writer thread -> observe, observe, ... -> event   values are on the host there
  training thread of a run without a log -> put_step           judged when they have arrived
```
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.first_steps.as_numbers import remembered
from trimtab.first_steps.observer import FirstSteps
from trimtab.first_steps.read_back import read_log
from trimtab.notices import warn
from trimtab.recorder import reason_of
from trimtab.recorder.arrival import number_of
from trimtab.resume.around import Around
from trimtab.resume.before import Before
from trimtab.resume.breaks import NUM_REMEMBERED
from trimtab.values import StepRow

__all__ = ["Continuity"]


class Continuity:
    """What a run remembers of its last steps, and what became of it since it was resumed.

    Args:
        rank: Whose steps they are.
        clock: Seconds since the epoch.

    Attributes:
        next_lr: Gives the learning rate that the optimizer has now; None where nobody knows.
        was_rebased: Tells whether another one than the checkpoint's was asked for.
    """

    def __init__(self, *, rank: int, clock: Callable[[], float]) -> None:
        self.next_lr: Callable[[], Any] | None = None
        self.was_rebased: Callable[[], bool] = lambda: False
        self._rank = rank
        self._clock = clock
        self._resumed_from = Before()
        self._steps: deque[StepRow] = deque(maxlen=NUM_REMEMBERED)
        self._first_steps: FirstSteps | None = None

    def put(self, item: StepRow, *, is_recorded: bool) -> None:
        """Takes a step that has ended; never waits. What is recorded comes to `FirstSteps` by the recorder."""
        self._steps.append(item)
        if self._first_steps is not None and not is_recorded:
            self._first_steps.put_step(item)

    def before(self, *, attempt: int | None, num_ranks: int) -> Before:
        """What a state tells of the steps up to now; waits for numbers that are on their way from a device."""
        if attempt is None and not self._steps:  # saved again as it was loaded
            attempt = self._resumed_from.attempt
        return Before(
            steps=(*self._resumed_from.steps, *remembered(self._steps))[-NUM_REMEMBERED:],
            attempt=attempt,
            num_ranks=num_ranks,
            next_lr=number_of(self.next_lr()) if self.next_lr is not None else None,
        )

    def go_on(self, before: Before, *, step: int, watches: bool) -> None:
        """Takes over what a state tells; from now on the steps to come are compared with it.

        Args:
            before: What the state tells.
            step: The step that comes next.
            watches: False: nothing is compared.
        """
        self._resumed_from = before
        self._steps.clear()
        self._first_steps = None
        if watches:
            around = Around(step=step, before=before, rank=self._rank)
            self._first_steps = FirstSteps(around, was_rebased=self.was_rebased, clock=self._clock)

    def compare_with(self, folder: Path, *, num_rows: int | None, num_ranks: int) -> None:
        """Reads what the log of the run that is gone on with holds around the checkpoint, and compares with that too.

        A log that cannot be read costs its part of the comparison, and one line says so.

        Args:
            folder: The run folder.
            num_rows: Rows of the dataset; None where nobody knows.
            num_ranks: Ranks that train now.
        """
        first_steps = self._first_steps
        if first_steps is None:
            return
        try:
            first_steps.around = read_log(folder, first_steps.around, num_rows=num_rows, num_ranks=num_ranks)
        except Exception as error:  # noqa: BLE001 - nothing that a log holds is worth a resume
            warn("resume", f"The log in {folder} could not be read: {reason_of(error)}. The rows are not compared.")
            first_steps.around = replace(first_steps.around, no_rows_because="the log could not be read")

    @property
    def first_steps(self) -> FirstSteps | None:
        """What looks at the first steps; None where nothing was resumed."""
        return self._first_steps

    def close(self) -> None:
        """Judges what there is of a run that is not recorded, which ends; may wait for a device."""
        if self._first_steps is not None:
            self._first_steps.finish()
