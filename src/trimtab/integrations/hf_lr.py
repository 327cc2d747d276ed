"""The learning rate of a Trainer that resumes: the saved one, or the one that was asked for.

Enters: a trainer, before and after it has loaded its optimizer and schedule. Leaves: both at the rate that was asked
for on a resume, at the same place of the schedule; or a line that says which rate was kept. Invariant: without an
explicit request nothing changes.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

from trimtab.notices import say, warn_setting
from trimtab.run import RunCore
from trimtab.torch.lr import base_lr, check_lr, kept_lr, rebase_lr


class LearningRate:
    """What becomes of one trainer's learning rate where it resumes."""

    def __init__(self, trainer: Any, *, on_resume: float | None) -> None:
        """Knows the trainer.

        Args:
            trainer: The `Trainer`.
            on_resume: The rate to go on with; None: the saved one.

        Raises:
            UsageError: It is no rate.
        """
        self._trainer = trainer
        self._on_resume = None if on_resume is None else check_lr(on_resume, name="lr_on_resume")
        self._asked: float | None = None

    def hook(self) -> None:
        """Notes the rate of each schedule that the trainer builds: what it loads afterwards hides it."""
        create_scheduler = self._trainer.create_scheduler

        @functools.wraps(create_scheduler)
        def noted(*args: Any, **kwargs: Any) -> Any:
            scheduler = create_scheduler(*args, **kwargs)
            self._asked = base_lr(self._trainer.optimizer, self._trainer.lr_scheduler)
            return scheduler

        self._trainer.create_scheduler = noted

    def begin(self, core: RunCore, *, resumes: bool) -> None:
        """Sets or tells the rate, once the trainer has loaded what it resumes from.

        Args:
            core: The run, which writes it down.
            resumes: Whether it resumes at all.

        Raises:
            UsageError: The schedule cannot be put at another rate; it is named, and nothing has changed.
        """
        trainer = self._trainer
        if self._on_resume is not None and not resumes:
            warn_setting(
                f"lr_on_resume={self._on_resume} has no effect on a training that begins anew: its learning rate is "
                "TrainingArguments(learning_rate=...)."
            )
        elif self._on_resume is not None:
            change = rebase_lr(trainer.optimizer, trainer.lr_scheduler, self._on_resume, quiet=True)
            if core.is_first_rank and change.old != change.new:
                say("resume", str(change), level=logging.INFO)
            core.event("lr_rebase", {"old": change.old, "new": change.new})
        elif resumes and core.is_first_rank:
            saved = base_lr(trainer.optimizer, trainer.lr_scheduler)
            if saved is None or self._asked is None or math.isclose(saved, self._asked, rel_tol=1e-9):
                return
            say("hf", f"{kept_lr(saved, self._asked, option=f'lr_on_resume={self._asked:g} to trimtab.attach')}.")
