"""`Recording`: where a run is recorded; framework-free.

What enters are micro-batches, ids of rows, steps and events, each with the step in which the run is. What leaves is the
log. The run folder is made when the first of them arrives, so that a state which is loaded before can still name the
run that is to be continued. Invariant: nothing that goes wrong while recording is raised; it turns recording off, and
one line says so.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab import __version__
from trimtab.errors import UsageError
from trimtab.log.folder import RunFolder, check_run_id, continue_run, create_run, is_run_folder, new_run_id, run_path
from trimtab.notices import say, warn
from trimtab.recorder import Recorder, reason_of
from trimtab.registry import register
from trimtab.values import Event, MicroBatch, RowIds, RunHeader, StepRow


class Recording:
    """The log of one run, which may not have begun yet.

    Attributes:
        is_on: Whether what is put is written.
        has_begun: Whether anything was put while it was on: the run's folder cannot be changed any more.
    """

    def __init__(
        self,
        header: RunHeader,
        *,
        out: str | os.PathLike[str] | None,
        run_id: str | None,
        record: bool,
        clock: Callable[[], float],
        rule: str | None,
    ) -> None:
        """Prepares a log; nothing is written yet.

        Args:
            header: What is known about the run; `run_id`, `created`, `out` and the version are filled in here.
            out: Folder under which the run folder `trimtab/<run_id>` is made.
            run_id: An existing run of `out` to continue as its next attempt, or a name for a new one.
            record: False: no folder, no registry entry, no thread.
            clock: Seconds since the epoch.
            rule: The rule of the run's guard, for the line that says where the run is recorded; None: no guard.

        Raises:
            UsageError: If `run_id` cannot be a folder name, or `out` is missing while recording.
        """
        if record and out is None:
            raise UsageError("Recording needs a folder, found out=None: name one, or pass record=False.")
        if run_id is not None and not isinstance(run_id, str):
            raise UsageError(f"run_id must be text, found {run_id!r}.")
        if out is not None and run_id is not None:
            check_run_id(run_id)
        self.is_on = record
        self.has_begun = False
        self._header = header
        self._out = Path(out) if out is not None else None
        self._run_id = run_id
        self._clock = clock
        self._rule = rule
        self._recorder: Recorder | None = None
        self._folder: RunFolder | None = None

    @property
    def run_id(self) -> str | None:
        """The run's id; None while nothing was recorded and none was given."""
        return self._folder.header.run_id if self._folder is not None else self._run_id

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded, and for good where nothing is."""
        return self._folder.path if self._folder is not None else None

    def continue_from(self, saved_id: str) -> None:
        """Makes the run of a checkpoint the one to be continued, if it is under `out` and no other was named."""
        if self._run_id is not None or self._out is None:
            return
        if is_run_folder(run_path(self._out, saved_id)):
            self._run_id = saved_id
        elif self.is_on:
            warn("run", f"Run {saved_id} of the checkpoint is not under {self._out}: a new run is begun.")

    def put(self, item: MicroBatch | RowIds | StepRow | Event, *, step: int) -> None:
        """Hands an item to the recorder; nothing happens while recording is off. Never raises.

        The first call makes the run folder and its entry in the list of runs (at most half a second, if another process
        holds the list); later ones never wait.

        Args:
            item: What is recorded.
            step: The step (1-based) in which the run is: one that is continued says that it goes on there.
        """
        if not self.is_on:
            return
        if not self.has_begun:
            self._begin(step)
        if self._recorder is not None:
            self._recorder.put(item)

    def event(self, kind: str, facts: Mapping[str, Any], *, step: int, of_step: int | None = None) -> None:
        """Records that something happened. Never raises.

        Args:
            kind: What.
            facts: JSON-ready; they are taken as they are now.
            step: The step in which the run is.
            of_step: The step that it happened in, where that is another one.
        """
        if self.is_on:
            happened = step if of_step is None else of_step
            self.put(Event(kind, happened, self._clock(), _snapshot(facts)), step=step)

    def flush(self, *, timeout_s: float) -> bool:
        """Waits until everything handed over is on disk; False if it took longer than `timeout_s`."""
        return self._recorder.flush(timeout_s) if self._recorder is not None else True

    def close(self, *, reason: str, step: int) -> bool:
        """Writes what is pending, and turns recording off. A second call does nothing.

        Args:
            reason: "closed", or the name of the exception that ended the run.
            step: The step in which the run is.

        Returns:
            Whether there was a log to close.
        """
        if self._recorder is None:
            return False
        self.event("end", {"reason": reason}, step=step)
        recorder, self._recorder, self.is_on = self._recorder, None, False
        recorder.close()
        return recorder.off_reason is None

    def _begin(self, step: int) -> None:
        self.has_begun = True
        assert self._out is not None, "checked when the recording was made"
        now = self._clock()
        try:
            run_id = self._run_id if self._run_id is not None else new_run_id(now)
            header = replace(
                self._header,
                run_id=run_id,
                created=now,
                out=str(self._out.absolute()),
                trimtab_version=__version__,
            )
            if is_run_folder(run_path(self._out, run_id)):
                self._folder = continue_run(self._out, run_id, header)
            else:
                self._folder = create_run(self._out, header)
            recorder = Recorder(self._folder)
            if recorder.off_reason is not None:  # the disk refused its first write; said already
                self.is_on = False
                return
            listed = register(self._folder.header, self._folder.path)
        # A full disk, a NUL in a path, a lock that another holds, a fault of ours: this is called in the middle of a
        # training step, and nothing about recording is worth that step.
        except Exception as error:  # noqa: BLE001
            self.is_on = False
            warn("recorder", f"Trimtab recorder off: {reason_of(error)}")
            return
        self._recorder = recorder
        guarded = f"guard {self._rule}" if self._rule is not None else "no guard"
        unlisted = "" if listed else " The list of runs cannot be written: name this folder to trimtab rewind."
        say("run", f"Trimtab records run {self.run_id} in {self._folder.path} ({guarded}).{unlisted}")
        if self._folder.attempt > 1:
            self._recorder.put(Event("resume", step, now, {"attempt": self._folder.attempt}))


def _snapshot(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are now: the writer reads them later, when the caller may have changed them."""
    try:
        return copy.deepcopy(dict(facts))
    except Exception:  # noqa: BLE001 - what cannot be copied is told by its words; an event never fails a run
        return {name: repr(value) for name, value in facts.items()}
