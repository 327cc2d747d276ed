"""Keeps a Trainer's rotation, which goes by age alone, from the last healthy checkpoint.

Enters: each save, as it is made: whether the model is healthy. Leaves: `args.save_total_limit` as the trainer's own
rotation, which comes right after, is to find it; once the training ends, as the user has set it. Invariant: while the
model is not healthy no checkpoint is deleted but of this run, and of those only such that are not healthy either.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.errors import CheckpointError
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import read_manifest


class Rotation:
    """The limit on one trainer's checkpoints."""

    def __init__(self, trainer: Any) -> None:
        """Knows the trainer."""
        self._trainer = trainer
        self._is_changed = False
        self._of_user: int | None = None

    @property
    def limit(self) -> int:
        """How many checkpoints the user wants; 0: all of them."""
        limit: int | None = self._of_user if self._is_changed else self._trainer.args.save_total_limit
        return max(limit or 0, 0)

    def before_rotation(self, folder: Path, *, healthy: bool) -> None:
        """Sets what the trainer's rotation goes by after this save, and once the training ends.

        Args:
            folder: The checkpoint that is being saved.
            healthy: Whether the model is.
        """
        self.restore()
        if not self.limit:
            return
        if not healthy:
            self._change(None)
        elif self.limit == 1 and self._best_is_unhealthy(folder):
            # By 1 a trainer that ends deletes all but the best one; by 2 it leaves the last one too. Until then both
            # leave those two.
            self._change(2)

    def after_manifest(self, folder: Path, *, run_id: str | None) -> None:
        """Holds the user's limit for those that are not healthy, so that they do not fill the disk; never raises.

        Args:
            folder: The checkpoint that was just saved, and is not healthy.
            run_id: The run that saved it.
        """
        if not self.limit:
            return
        best = self._trainer.state.best_global_step
        with suppress(CheckpointError):
            infos = [info for info in list_checkpoints(folder.parent) if info.run_id == run_id]
            unhealthy = [info for info in infos if info.serial is not None and info.healthy is False]
            for info in sorted(unhealthy, key=lambda info: info.serial or 0)[: -self.limit]:
                if info.step != best:
                    shutil.rmtree(info.path, ignore_errors=True)  # as transformers does

    def restore(self) -> None:
        """Gives the trainer back the limit that the user has set."""
        if self._is_changed:
            self._trainer.args.save_total_limit = self._of_user
            self._is_changed = False

    def _change(self, limit: int | None) -> None:
        self._of_user, self._is_changed = self._trainer.args.save_total_limit, True
        self._trainer.args.save_total_limit = limit

    def _best_is_unhealthy(self, folder: Path) -> bool:
        best = self._trainer.state.best_global_step
        if not best or folder.name == f"checkpoint-{best}":
            return False
        with suppress(CheckpointError):
            return not read_manifest(folder.with_name(f"checkpoint-{best}")).healthy
        return False
