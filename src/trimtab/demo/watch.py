"""What a trainer callback sees of the demo while it trains: progress, and death.

Enters: the trainer's own log of each step. Leaves: lines on the console, and a stop once the run is dead: with weights
of NaN, 100 further steps would teach nobody anything. What the guard skips, the library says itself.
"""

from __future__ import annotations

import math
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trimtab.demo.console import Console

LINE_STEPS: Final = 30
"""Steps between two progress lines where the output is no terminal."""
REWRITE_STEPS: Final = 5
DEAD_STEPS: Final = 15
"""Steps without a finite loss after which the run is given up; a guard that works never lets two pass."""


class Watch(TrainerCallback):
    """Tells on the console how the training goes.

    Attributes:
        last_loss: The last loss that the trainer reported; NaN before the first.
        dead_since: First step of the unbroken stretch of non-finite losses; None while the loss is finite.
    """

    def __init__(self, console: Console) -> None:
        """Watches one training and tells of it on `console`."""
        self.last_loss = math.nan
        self.dead_since: int | None = None
        self._console = console
        self._begun_s = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Starts the clock."""
        self._begun_s = self._console.elapsed_s

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Takes one step's loss; stops the training once it is dead."""
        logs = kwargs["logs"]
        if "loss" not in logs:
            return  # the summary at the end of training
        step = state.global_step
        self.last_loss = float(logs["loss"])
        if math.isfinite(self.last_loss):
            self.dead_since = None
        elif self.dead_since is None:
            self.dead_since = step
        if step % (REWRITE_STEPS if self._console.is_terminal else LINE_STEPS) == 0:
            self._tell_progress(step, state.max_steps)
        if self.dead_since is not None and step - self.dead_since + 1 >= DEAD_STEPS:
            self._console.stage(
                f"the loss is {self.last_loss} since step {self.dead_since}, for {DEAD_STEPS} steps by now: the "
                f"weights are dead, and the {state.max_steps - step} steps left would change nothing; stopping here"
            )
            control.should_training_stop = True

    def _tell_progress(self, step: int, num_steps: int) -> None:
        left_s = (self._console.elapsed_s - self._begun_s) / step * (num_steps - step)
        left = f", about {left_s:.0f} s left" if step < num_steps else ""
        self._console.progress(f"step {step:3d} of {num_steps}, loss {self.last_loss:.2f}{left}")
