"""`Checkpointer`: saves a training whole, picks the right checkpoint, and goes on from it.

Enters: model, optimizer and what belongs to them, once a save; a checkpoint, once a resume. Leaves: folders
`step_<number>` that hold to their manifests, and a training that goes on as if it had not been interrupted. Invariants:
what was saved before a save begins still loads wherever that is killed; a save that fails does not end the training; a
load that is refused leaves everything as it was on every rank, or names what it could not put back.

Among several ranks every call is made on all of them, in the same order. Rank 0 decides (which checkpoint, whether one
is whole, what is deleted); all ranks go on alike or raise the same error. A rank that is lost holds the others until
the timeout of torch.distributed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn

from trimtab.errors import CheckpointError, GuardLockupError, TrimtabError, UsageError
from trimtab.log.folder import check_run_id
from trimtab.notices import say, warn
from trimtab.resume.describe import last_serial
from trimtab.resume.disk_changes import DISK, Disk
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import ResumedFrom
from trimtab.resume.select import pick
from trimtab.text import plain
from trimtab.torch.checkpoint_load import Resumed, begin_anew, go_on
from trimtab.torch.checkpoint_looks import Looks
from trimtab.torch.checkpoint_plan import Goals
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_save import Given
from trimtab.torch.checkpoint_saver import Saver
from trimtab.torch.checkpoint_source import Source, find_source
from trimtab.torch.save_threads import SaveThread

__all__ = ["Checkpointer", "Resumed"]

_LOG: Final = "checkpoint"

OnFailure = Literal["continue", "raise"]


class Checkpointer:
    """Saves and loads the checkpoints of one run, in one folder that all ranks share.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(4, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> checkpoints = Checkpointer(tempfile.mkdtemp())
        >>> saved = checkpoints.save(100, model=model, optimizer=optimizer, loss=2.5)
        >>> resumed = checkpoints.load(checkpoints.pick(), model=model, optimizer=optimizer)
        >>> resumed.step, resumed.loss
        (100, 2.5)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 5,
        run_id: str | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
        on_failure: OnFailure = "continue",
        disk: Disk = DISK,
    ) -> None:
        """Touches nothing yet.

        Args:
            folder: Where the checkpoints are; made by the first save.
            keep: How many of this run's newest checkpoints stay; 0 or less: all. Never deleted are the one just
                written, the last healthy one, and those of other runs.
            run_id: The run. None: that of the checkpoint that is loaded, else that of the `run` that is saved with it,
                else a new one.
            process_group: The ranks that save together. None: the default group where torch.distributed is initialised,
                else this process alone.
            on_failure: What a save does that fails (disk full, quota, an I/O error): "continue" says so in an error
                line and returns None, "raise" raises `CheckpointError`.
            disk: What changes the disk.

        Raises:
            UsageError: A setting makes no sense.
        """
        if isinstance(keep, bool) or not isinstance(keep, int):
            raise UsageError(f"keep={keep!r}: use the number of checkpoints to keep; 0 or less keeps all.")
        if on_failure not in ("continue", "raise"):
            raise UsageError(f'on_failure must be "continue" or "raise", found {on_failure!r}.')
        if run_id is not None:
            check_run_id(run_id)
        self._folder = Path(os.path.abspath(folder))
        self._named_run = run_id
        self._ranks = RanksTogether(process_group)
        self._on_failure = on_failure
        self._looks = Looks()
        self._saver = Saver(self._folder, keep=keep, run_id=run_id, ranks=self._ranks, disk=disk, looks=self._looks)
        self._pending: _Pending | None = None

    @property
    def folder(self) -> Path:
        """Where the checkpoints are, absolute."""
        return self._folder

    @property
    def run_id(self) -> str | None:
        """The run that is saved; None until it is named, loaded or saved for the first time."""
        return self._saver.run_id

    # Saving.

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        loss: Any = None,
        extra: Any = None,
        healthy: bool | None = None,
        scaler: Any = None,
        run: Any = None,
        data: Any = None,
        best_eval: Any = None,
        config: Any = None,
        wait: bool = True,
    ) -> CheckpointInfo | None:
        """Saves after an optimizer step, between two windows; waits for the device and, with `wait`, for the disk.

        The random number generators of Python, NumPy, torch and CUDA are saved with it, each rank's. A checkpoint of
        the same run and step is replaced; one of another run is never. Values are plain ones (numbers, text, lists,
        mappings, tensors): a checkpoint is loaded without a pickle.

        Args:
            step: Optimizer steps that are behind it.
            model: The model, or what it is wrapped in; also one that `fully_shard` has sharded.
            optimizer: Its optimizer.
            scheduler: What has `state_dict()` and sets the learning rate.
            loss: The loss as it was logged: a number, or a 0-d tensor.
            extra: Anything plain that belongs to the run and has no other place.
            healthy: None: it is healthy if no weight or moment is NaN or infinite that was finite at the run's first
                save. True or False: as the caller knows better.
            scaler: A gradient scaler.
            run: A `trimtab.Run`, a loss kit or a guard, whose state decides with.
            data: Where this rank is in its data: a mapping, or what has `state_dict()` (a stateful loader).
            best_eval: The best evaluation so far and its streak.
            config: The settings of the run.
            wait: False: values are copied to the host at the call, and a thread writes them; the next `save` or `wait`
                waits for it, and so does the end of the process.

        Returns:
            What was saved; None where it was not, or with `wait=False` not yet.

        Raises:
            UsageError: An argument makes no sense, or at the first save `step_<step>` is another run's.
            CheckpointError: The save failed, or one in a thread before it, and `on_failure` is "raise".
        """
        self._finish_pending()
        given = Given(
            step=step,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=scaler,
            loss=loss,
            extra=extra,
            healthy=healthy,
            run=run,
            data=data,
            best_eval=best_eval,
            config=config,
        )
        try:
            finish = self._saver.begin(given, copies=not wait)
            if wait:
                return finish()
        except (UsageError, GuardLockupError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever kept it from being saved, the training goes on
            self._failed(step, error)
            return None
        self._pending = _Pending(finish, folder=self._folder, failed=lambda error: self._failed(step, error))
        return None

    def wait(self) -> CheckpointInfo | None:
        """Waits for a save that a thread is writing.

        Returns:
            What it saved; None where it failed, or there was none.

        Raises:
            CheckpointError: It failed, and `on_failure` is "raise".
        """
        return self._finish_pending()

    # Loading.

    def has_checkpoints(self) -> bool:
        """Whether the folder holds what looks like a checkpoint of this run: of any, while no run is named.

        False says that there is nothing to resume, and not that something is damaged: then `pick` says what.
        """
        self._finish_pending()
        return self._ranks.from_first(self._any_there)

    def pick(self, *, healthy: bool = False) -> CheckpointInfo:
        """The newest checkpoint that is complete and whole; all ranks get the same.

        Args:
            healthy: The newest healthy one, if the newest one is not.

        Returns:
            It; `healthy` may be False without `healthy=True`, and `load` then refuses it.

        Raises:
            CheckpointError: There is none; it names each that was looked at, and why it was not taken.
        """
        self._finish_pending()
        info = self._ranks.from_first(lambda: self._pick(healthy=healthy))
        if self._ranks.is_first:
            for refused in info.refused:
                warn(_LOG, f"{plain(str(refused.path))} was passed over: {refused.reason}")
            for notice in info.notices:
                warn(_LOG, notice)
        return info

    def load(
        self,
        info_or_path: CheckpointInfo | str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        lr: float | None = None,
        scaler: Any = None,
        run: Any = None,
        data: Any = None,
    ) -> Resumed:
        """Goes on from a checkpoint, after it was verified; call it before the first micro-batch.

        Weights, moments, schedule, scaler, guard and random number generators are put back to where they were. With a
        path an unhealthy checkpoint is loaded, with a warning; from `pick` it is refused.

        Args:
            info_or_path: What `pick` gave, or the path of a checkpoint.
            model: The model, wrapped or not, sharded or not, whatever it was when it was saved.
            optimizer: Its optimizer. None: an explicit fresh start from the weights alone, in which schedule and random
                numbers begin anew.
            scheduler: The scheduler; it must be given exactly where one was saved.
            lr: The learning rate to go on with, the place in the schedule kept (`rebase_lr`); None: the saved one.
            scaler: The gradient scaler, as `scheduler`.
            run: What was saved as `run`, made and not used yet.
            data: What was saved as `data`, where that has `load_state_dict`; None: its position is in the result.

        Returns:
            What was saved beside the state, and what is to be remarked.

        Raises:
            CheckpointError: It is damaged, incomplete, unhealthy (and not named by its path), or of another model,
                optimizer or schedule, and nothing has changed, on any rank; or something refused its state (a hook, a
                model's extra state): then all is put back, and what somebody else's code did not take back is named.
            UsageError: An argument makes no sense or is not the same on all ranks, the learning rate cannot be changed,
                or `run` refuses its state; likewise.
        """
        self._finish_pending()
        goals = Goals(model=model, optimizer=optimizer, scheduler=scheduler, lr=lr, scaler=scaler, run=run, data=data)

        def alike() -> dict[str, object]:
            goals.check()
            return goals.alike(info_or_path)

        self._ranks.alike(alike, call="load")
        source, serial = self._ranks.from_first(lambda: self._find(info_or_path, is_fresh=optimizer is None))
        if optimizer is None:
            resumed = begin_anew(source, goals, ranks=self._ranks)
            if not self._saver.has_begun:
                self._saver.resumed_from = ResumedFrom(step=resumed.step, serial=serial)
            return resumed
        resumed, baseline = go_on(source, goals, ranks=self._ranks)
        self._saver.resumed_from = ResumedFrom(step=resumed.step, serial=serial)
        if self._named_run is None:
            self._saver.run_id = resumed.run_id
        self._saver.baseline = baseline if self.run_id == resumed.run_id else None
        return resumed

    # Within.

    def _pick(self, *, healthy: bool) -> CheckpointInfo:
        info = pick(self._folder, healthy=healthy, run_id=self.run_id)
        self._looks.was_picked(info)
        return info

    def _find(self, info_or_path: CheckpointInfo | str | os.PathLike[str], *, is_fresh: bool) -> tuple[Source, int]:
        """What is to be loaded, and the highest serial in the folder by then: what is left behind, and what comes."""
        return find_source(info_or_path, is_fresh=is_fresh, looks=self._looks), last_serial(self._folder)

    def _any_there(self) -> bool:
        if not self._folder.is_dir():
            return False
        infos = list_checkpoints(self._folder)
        # One that cannot be read may be this run's: whoever asks must hear of it from `pick`.
        return any(self.run_id in (None, info.run_id) or info.problem is not None for info in infos)

    def _finish_pending(self) -> CheckpointInfo | None:
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else None

    def _failed(self, step: int, error: Exception) -> None:
        """What becomes of a save that failed: the same on every rank.

        Raises:
            CheckpointError: `on_failure` is "raise".
        """
        text = str(error) if isinstance(error, TrimtabError) else spelled_error(error)
        message = f"the checkpoint of step {step} was not saved: {text}"
        if self._on_failure == "raise":
            raise CheckpointError(message) from error
        if self._ranks.is_first:
            say(_LOG, f"{message}; what was saved before is still there, and the training goes on", level=logging.ERROR)


class _Pending:
    """A save that a thread is writing. The process does not end before it has."""

    def __init__(
        self, finish: Callable[[], CheckpointInfo], *, folder: Path, failed: Callable[[Exception], None]
    ) -> None:
        self._info: CheckpointInfo | None = None
        self._error: Exception | None = None
        self._finish = finish
        self._failed = failed
        self._thread = SaveThread(self._run, folder=folder)

    def result(self) -> CheckpointInfo | None:
        """Waits for it.

        Raises:
            CheckpointError: It failed, and that is to be raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._info

    def _run(self) -> None:
        try:
            self._info = self._finish()
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            try:
                self._failed(error)
            except CheckpointError as failure:
                self._error = failure
