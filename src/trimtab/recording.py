"""`Recording`: where a run is recorded; framework-free.

What enters are micro-batches, ids of rows, steps and events, each with the step in which the run is. What leaves is the
log. The run folder is made when the first of them arrives, so that a state which is loaded before can still name the
run that is to be continued. Invariant: nothing that goes wrong while recording is raised; it turns recording off, and
one line says so.

Among several ranks rank 0 makes the folder, as it would alone, and with its first micro-batch or step tells the others
where it is; each rank appends to a journal of its own. A run in which nothing is trained is that of rank 0 alone: so
what it measures before the others begin is not taken for theirs. They need not begin together, and none waits for
another: until it has heard, a rank keeps what it observes in memory (`trimtab.recorder.backlog` says how much), and
only its `close` waits, for seconds. A rank that is lost costs the log its own rows from then on.

```
  rank 0   put -> run folder -> Recorder -> tell            a `Meeting` carries the word: no collective, no lock
  rank 1   put -> Backlog  - - - - - - - -  heard -> Recorder
```
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trimtab import __version__
from trimtab.errors import UsageError
from trimtab.log.folder import (
    RunFolder,
    check_run_id,
    continue_run,
    create_run,
    has_header,
    is_run_folder,
    join_run,
    new_run_id,
    run_path,
)
from trimtab.notices import say, warn
from trimtab.recorder import Observer, Recorder, reason_of
from trimtab.recorder.backlog import Backlog
from trimtab.recorder.meeting import NOT_RECORDED, Meeting, Word
from trimtab.registry import register
from trimtab.text import plain
from trimtab.values import Event, MicroBatch, RowIds, RunHeader, StepRow

_CAPACITY_MICROS: Final = 1 << 16  # as many as a recorder lets wait for the disk
_PATIENCE_S: Final = 15.0
"""Seconds that a closing rank waits for the word of rank 0. It comes at once also where rank 0 does not record: waited
for in full is only one that never begins. On a machine with eight times its load rank 0 was seen to be 5 s behind."""

_LOOK_INTERVAL_S: Final = 0.05


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
        meeting: Meeting | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Prepares a log; nothing is written yet.

        Args:
            header: What is known about the run; `run_id`, `created`, `out` and the version are filled in here.
            out: Folder under which the run folder `trimtab/<run_id>` is made.
            run_id: An existing run of `out` to continue as its next attempt, or a name for a new one.
            record: False: no folder, no registry entry, no thread.
            clock: Seconds since the epoch.
            rule: Of the run's guard, for the line that says where it is recorded; None: no guard.
            meeting: Where the ranks of this run meet; None: this process is the only one.
            patience_s: Seconds that `close` waits at most for a word of rank 0, on a rank that has not heard of it.

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
        self._header = header if meeting is None else replace(header, world_size=meeting.world_size)
        self._out = Path(out) if out is not None else None
        self._run_id = run_id
        self._clock = clock
        self._rule = rule
        self._recorder: Recorder | None = None
        self._observers: tuple[Observer, ...] = ()
        self._folder: RunFolder | None = None
        self._meeting = meeting
        self._rank = meeting.rank if meeting is not None else 0
        self._patience_s = patience_s
        self._opening: tuple[str, dict[str, Any]] | None = None
        self._unwritten = Backlog(_CAPACITY_MICROS, ring_at=_CAPACITY_MICROS)
        self._trains = False

    @property
    def run_id(self) -> str | None:
        """The run's id; None while nothing was recorded and none was given."""
        return self._folder.header.run_id if self._folder is not None else self._run_id

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded, and for good where nothing is."""
        return self._folder.path if self._folder is not None else None

    @property
    def attempt(self) -> int | None:
        """Which attempt of the run this is; None until something was recorded."""
        return self._folder.attempt if self._folder is not None else None

    @property
    def header(self) -> RunHeader:
        """What is known about the run, before it has a folder."""
        return self._header

    @property
    def num_ranks(self) -> int:
        """Ranks that train in this run."""
        return self._header.world_size

    def continue_from(self, saved_id: str | None) -> Path | None:
        """Makes the run of a checkpoint the one to be continued, if it is under `out` and no other was named.

        Belongs before the first `put`.

        Args:
            saved_id: The run; None: the checkpoint names none.

        Returns:
            The folder with what the run has recorded up to now; None where there is none, or nothing is recorded here.
        """
        if saved_id is None or self._out is None:
            return None
        path = run_path(self._out, saved_id)
        is_there = is_run_folder(path)
        if self._run_id is None and self._rank == 0:  # to the other ranks rank 0 tells
            if is_there:
                self._run_id = saved_id
            elif self.is_on:
                warn("run", f"Run {saved_id} of the checkpoint is not under {self._out}: a new run is begun.")
        return path if is_there and self.is_on else None

    def observe_by(self, *observers: Observer) -> None:
        """Shows what will be recorded to these, in the recorder's thread; belongs before the first `put`."""
        self._observers = observers

    def open_with(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Has an event written before the first micro-batch or step, by rank 0 alone; belongs before that.

        Args:
            kind: As in `event`.
            facts: Likewise.
        """
        self._opening = (kind, _snapshot(facts))

    @property
    def is_observed(self) -> bool:
        """Whether what is put comes to the observers; not where a disk has failed, or nothing is recorded."""
        return self.is_on and (self._recorder is None or self._recorder.off_reason is None)

    def put(self, item: MicroBatch | RowIds | StepRow | Event, *, step: int) -> None:
        """Hands an item to the recorder; nothing happens while recording is off. Never raises.

        The first call makes the run folder and its entry in the list of runs (at most half a second, if another process
        holds the list); later ones never wait. On a rank above 0 none does.

        Args:
            item: What is recorded.
            step: The step (1-based) in which the run is: one that is continued says that it goes on there.
        """
        if self.is_on:
            if not self.has_begun:
                self.has_begun = True
                if self._rank == 0:
                    self._start(step)
            elif self._rank and self._trains and self._recorder is None:
                self._listen()
        if not self._trains and isinstance(item, MicroBatch | StepRow):
            self._trains = True
            self._meet()
            if self._opening is not None and self._rank == 0:
                self.event(*self._opening, step=step)
        if self._recorder is not None:
            self._recorder.put(item)
        elif self.is_on:
            self._unwritten.put(item)

    def event(self, kind: str, facts: Mapping[str, Any], *, step: int, of_step: int | None = None) -> Event:
        """Records that something happened, and gives what is recorded, or would be. Never raises.

        Args:
            kind: What.
            facts: JSON-ready; they are taken as they are now.
            step: The step in which the run is.
            of_step: The step that it happened in, where that is another one.
        """
        event = Event(kind, step if of_step is None else of_step, self._clock(), _snapshot(facts))
        if self.is_on:
            self.put(event, step=step)
        return event

    def flush(self, *, timeout_s: float) -> bool:
        """Waits until all is on disk; False if it took too long, or at once where a rank has not heard yet where to."""
        return self._recorder.flush(timeout_s) if self._recorder is not None else not len(self._unwritten)

    def close(self, *, reason: str, step: int) -> bool:
        """Writes what is pending, and turns recording off. A second call does nothing.

        A rank above 0 that does not know yet where to write waits some seconds for the word of rank 0.

        Args:
            reason: "closed", or the name of the exception that ended the run.
            step: The step in which the run is.

        Returns:
            Whether there was a log to close.
        """
        if self._has_no_word:
            self._wait_for_word()
        if self._recorder is None:
            return False
        self.event("end", {"reason": reason}, step=step)
        recorder, self._recorder, self.is_on = self._recorder, None, False
        recorder.close()
        if self._meeting is not None and self._rank == 0 and self._trains:
            self._meeting.tell_end()
        return recorder.off_reason is None

    def _meet(self) -> None:
        """Takes part in the meeting of the ranks, from the first micro-batch or step on."""
        if self._meeting is None:
            return
        if self._rank:
            if self.is_on:
                self._listen()
            else:
                self._meeting.heard()  # it is one of the runs by which they are counted
        elif self._recorder is not None:
            assert self._folder is not None, "a recorder has a folder"
            self._meeting.tell(Word(str(self.run_id), self._folder.attempt, str(self._folder.path)))
        else:
            self._meeting.tell(NOT_RECORDED)

    def _start(self, step: int) -> None:
        """Makes the run folder, or continues it."""
        assert self._out is not None, "checked when the recording was made"
        now = self._clock()
        try:
            run_id = self._run_id if self._run_id is not None else new_run_id(now)
            header = self._complete(run_id, created=now)
            if is_run_folder(run_path(self._out, run_id)):
                self._folder = continue_run(self._out, run_id, header)
            else:
                self._folder = create_run(self._out, header)
            recorder = Recorder(self._folder, observers=self._observers)
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
        say("run", f"Trimtab records run {self.run_id} in {plain(str(self._folder.path))} ({guarded}).{unlisted}")
        if self._folder.attempt > 1:
            self._recorder.put(Event("resume", step, now, {"attempt": self._folder.attempt}))

    def _complete(self, run_id: str, *, created: float) -> RunHeader:
        assert self._out is not None, "checked when the recording was made"
        return replace(
            self._header, run_id=run_id, created=created, out=str(self._out.absolute()), trimtab_version=__version__
        )

    def _listen(self, *, at_end: bool = False) -> None:
        """On a rank above 0: begins to write as soon as rank 0 has said where. Never waits or raises."""
        assert self._meeting is not None, "it is a rank above 0"
        heard = self._meeting.heard(at_end=at_end)
        if heard is None:
            return
        if heard == NOT_RECORDED:
            self._turn_off("rank 0 does not record this run")
            return
        try:
            assert self._out is not None, "checked when the recording was made"
            header = self._complete(heard.run_id, created=self._clock())
            self._folder = join_run(self._out, header, attempt=heard.attempt, folder=heard.folder)
            recorder = Recorder(self._folder, rank=self._rank, observers=self._observers)
        except Exception as error:  # noqa: BLE001 - as in `_start`
            self._turn_off(reason_of(error))
            return
        if recorder.off_reason is not None:  # the disk refused its first write; said already
            self.is_on = False
            self._unwritten.clear()
            return
        recorder.take_over(self._unwritten)
        self._recorder = recorder
        if not has_header(self._folder.path):
            say(
                "run",
                f"Trimtab records rank {self._rank} of run {heard.run_id} in {plain(str(self._folder.path))}: "
                f"the folder of rank 0, {plain(heard.folder)}, is not to be found from here. Copy what is in both into "
                "one, and trimtab rewind reads them as one run.",
            )

    def _wait_for_word(self) -> None:
        if not self._trains:
            if len(self._unwritten):
                self._turn_off("nothing was trained in this run, so rank 0 alone records it")
            return
        deadline = time.monotonic() + self._patience_s
        self._listen(at_end=True)
        while self._has_no_word and time.monotonic() < deadline:
            time.sleep(_LOOK_INTERVAL_S)
            self._listen(at_end=True)
        if self._has_no_word:
            self._turn_off(
                f"rank 0 has not said within {self._patience_s:g} s of the end where this run is recorded: it has not "
                "begun it, or was given another out, guard or accumulation"
            )

    @property
    def _has_no_word(self) -> bool:
        return self.has_begun and self.is_on and self._recorder is None

    def _turn_off(self, reason: str) -> None:
        """On a rank above 0: says what became of what it had to write."""
        self.is_on = False
        num_lost = len(self._unwritten) + self._unwritten.num_dropped
        self._unwritten.clear()
        lost = f" {num_lost} items of this rank are in no log." if num_lost else ""
        warn("recorder", f"Trimtab recorder off on rank {self._rank}: {reason}.{lost}")


def _snapshot(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are now: the writer reads them later, when the caller may have changed them."""
    try:
        return copy.deepcopy(dict(facts))
    except Exception:  # noqa: BLE001 - what cannot be copied is told by its words; an event never fails a run
        return {name: repr(value) for name, value in facts.items()}
