"""`RunCore`: guard and recorder behind the few verbs that an adapter needs; framework-free.

An adapter (the public `Run` of a loop of one's own, the Hugging Face integration) translates its host's moments into
these verbs, in this order:

    judge -> record_micro_batch      once a micro-batch
    record_row_ids                   once a row, or as often as it comes
    drop_reason -> end_step          once an optimizer step
    evaluation, event                whenever
    close                            at the end

What enters are numbers and array-likes; what leaves is a verdict, the log, and a `state_dict`. The run folder is made
when the first thing is recorded, so that `load_state_dict` can still name the run that is to be continued. Nothing
that goes wrong while recording is raised into training; an error in a decision is.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.log.folder import RunFolder, check_run_id, continue_run, create_run, is_run_folder, new_run_id, run_path
from trimtab.notices import say, warn, warn_once, warn_setting
from trimtab.recorder import Recorder, reason_of
from trimtab.registry import register
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.values import (
    STEP_REASONS,
    VERDICT_REASONS,
    Event,
    MicroBatch,
    RowIds,
    RunHeader,
    StepReason,
    StepRow,
    Verdict,
)

STATE_VERSION = 1
SKIPS_SAID = 20
"""Skips that a run says line by line: enough to see a pattern, few enough to leave the terminal readable."""

_REASON_CODE = {reason: code for code, reason in enumerate(VERDICT_REASONS)}
_STEP_CODE = {reason: code for code, reason in enumerate(STEP_REASONS)}


def switched_off() -> bool:
    """Whether `TRIMTAB=off` in the environment asks Trimtab to do nothing; said once a process."""
    if os.environ.get("TRIMTAB", "").strip().lower() != "off":
        return False
    warn_once("run", "Trimtab does nothing: TRIMTAB=off is set in the environment.", cause="switched off")
    return True


@dataclass(slots=True)
class WindowCounts:
    """What the host knows about the accumulation window that is being filled.

    The token counts are known only where a guard judges on the host; without one they stay 0.
    """

    num_micros: int = 0
    num_tokens: int = 0
    num_skipped_micros: int = 0
    num_skipped_tokens: int = 0

    @property
    def num_kept_micros(self) -> int:
        """Micro-batches that take part in the update."""
        return self.num_micros - self.num_skipped_micros

    @property
    def num_kept_tokens(self) -> int:
        """Supervised tokens that take part in the update."""
        return self.num_tokens - self.num_skipped_tokens


class RunCore:
    """One training run: which step it is in, what its guard decides, and where it is recorded."""

    def __init__(
        self,
        header: RunHeader,
        *,
        out: str | os.PathLike[str] | None = None,
        guard: GuardConfig | None = None,
        record: bool = True,
        run_id: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepares a run; nothing is written yet.

        Args:
            header: What is known about the run; `run_id`, `created` and `out` are filled in here.
            out: Folder under which the run folder `trimtab/<run_id>` is made.
            guard: Settings of the guard; None: nothing is ever skipped or dropped.
            record: False: no folder, no registry entry, no thread.
            run_id: An existing run of `out` to continue as its next attempt, or a name for a new one.
            clock: Seconds since the epoch.

        Raises:
            UsageError: If `run_id` cannot be a folder name, or `out` is missing while recording.
        """
        if record and out is None:
            raise UsageError("Recording needs a folder, found out=None: name one, or pass record=False.")
        if run_id is not None and not isinstance(run_id, str):
            raise UsageError(f"run_id must be text, found {run_id!r}.")
        if out is not None and run_id is not None:
            check_run_id(run_id)
        if guard is not None and not guard.enabled:
            warn_setting(
                "The guard that was handed over is off (rule 'mean' with multiplier None), so nothing will be "
                'skipped: pass GuardConfig(rule="robust"), or GuardConfig(multiplier=2.0), or guard=None.'
            )
            guard = None
        self.config = guard
        self.guard = PerTokenLossGuard.from_config(guard) if guard is not None else None
        self.window = WindowCounts()
        self.step = 1
        self._header = header
        self._out = Path(out) if out is not None else None
        self._run_id = run_id
        self._clock = clock
        self._record = record
        self._opened = False
        self._recorder: Recorder | None = None
        self._folder: RunFolder | None = None
        self._last_step_ended: float | None = None
        self._num_skips_said = 0
        self._said_no_tokens = False

    # What the adapter asks.

    @property
    def run_id(self) -> str | None:
        """The run's id; None while nothing was recorded and none was given."""
        return self._folder.header.run_id if self._folder is not None else self._run_id

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded, and for good with `record=False`."""
        return self._folder.path if self._folder is not None else None

    def judge(
        self,
        loss_sum: float,
        num_tokens: int,
        *,
        aux: float = 0.0,
        leading_row: Callable[[], int | None] = lambda: None,
    ) -> Verdict:
        """Decides about the micro-batch at hand, before its backward.

        Args:
            loss_sum: Sum of its loss over supervised tokens.
            num_tokens: Their count.
            aux: Sum of its further loss terms; the micro-batch is skipped if this is not finite.
            leading_row: Finds the row that leads the micro-batch; called only for one that is skipped.

        Returns:
            The guard's verdict.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up.
        """
        assert self.guard is not None, "judge() belongs to a run with a guard"
        # A term that is not finite poisons the gradient as surely as the loss itself; times zero keeps any other.
        verdict = self.guard.check(loss_sum + aux * 0.0, num_tokens, step=self.step)
        self.window.num_tokens += num_tokens
        if not verdict.keep:
            # With finite losses a further term is what is not finite, and no row is to blame.
            blameless = verdict.reason == "nonfinite" and math.isfinite(loss_sum)
            if self._num_skips_said < SKIPS_SAID:
                self._say_skipped(verdict, row=None if blameless else leading_row())
            self.window.num_skipped_micros += 1
            self.window.num_skipped_tokens += num_tokens
        return verdict

    def record_micro_batch(
        self, rows: Any, loss_sums: Any, num_tokens: Any, *, verdict: Verdict | None = None, packed: bool = False
    ) -> None:
        """Hands one micro-batch to the recorder; the arguments are those of `MicroBatch`.

        Never raises. The first call makes the run folder and its entry in the list of runs (at most half a second, if
        another process holds the list); later ones never wait.
        """
        micro = self.window.num_micros
        self.window.num_micros += 1
        if not self._record:
            return
        reason, keep = (0, True) if verdict is None else (_REASON_CODE[verdict.reason], verdict.keep)
        self._put(MicroBatch(self.step, micro, rows, loss_sums, num_tokens, reason, keep, packed))

    def record_row_ids(self, ids: RowIds) -> None:
        """Hands what rows are beside their number to the recorder; once a row is enough. Never raises or waits."""
        if self._record:
            self._put(ids)

    def drop_reason(self) -> StepReason | None:
        """Why the window that is complete must not be stepped; None if it may. Always None without a guard."""
        if self.guard is None or self.window.num_kept_tokens > 0:
            return None
        if self.window.num_skipped_micros:
            return "all_skipped"
        if not self._said_no_tokens:
            self._said_no_tokens = True
            warn(
                "run",
                f"Step {self.step} had no supervised token at all and was not taken: look for rows whose labels are "
                "all ignored (a prompt longer than the cut, a wrong template). Said once.",
            )
        return "no_tokens"

    def begin_step(self, step: int) -> None:
        """Tells which optimizer step (1-based) comes now; for hosts that keep their own count."""
        self.step = step
        self.window = WindowCounts()

    def end_step(
        self,
        reason: StepReason = "stepped",
        *,
        loss: Any = float("nan"),
        num_tokens: Any = 0,
        grad_norm: Any = None,
        lr: Any = None,
        clipped: Any = None,
        loss_scale: Any = None,
    ) -> None:
        """Records the optimizer step that just ended, with the facts of `StepRow`, and opens the next window."""
        now = self._clock()
        wall_s = now - self._last_step_ended if self._last_step_ended is not None else float("nan")
        self._last_step_ended = now
        if self._record:
            self._put(
                StepRow(
                    self.step,
                    loss,
                    grad_norm,
                    lr,
                    _STEP_CODE[reason],
                    clipped,
                    loss_scale,
                    wall_s,
                    num_tokens,
                    self.window.num_skipped_micros,
                    self.window.num_skipped_tokens,
                )
            )
        self.begin_step(self.step + 1)

    def event(self, kind: str, facts: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records that something happened during `step`, by default the present one."""
        if self._record:
            self._put(Event(kind, self.step if step is None else step, self._clock(), _snapshot(facts)))

    def evaluation(self, loss: float, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records the result of an evaluation; it never mixes with the training loss."""
        self.event("evaluation", {"loss": loss, **metrics}, step=step)

    def flush(self, *, timeout_s: float = 30.0) -> bool:
        """Waits until everything handed over is on disk; False if it took longer than `timeout_s`."""
        return self._recorder.flush(timeout_s) if self._recorder is not None else True

    def close(self, *, reason: str = "closed") -> bool:
        """Ends the run: writes what is pending. A second call does nothing.

        Args:
            reason: "closed", or the name of the exception that ended the run.

        Returns:
            Whether there was a log to close.
        """
        if self._recorder is None:
            return False
        self.event("end", {"reason": reason})
        recorder, self._recorder, self._record = self._recorder, None, False
        recorder.close()
        return recorder.off_reason is None

    # State.

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values: put it into every checkpoint, taken between two windows.

        Returns:
            A dict of str, int, float, list and dict only.
        """
        return {
            "version": STATE_VERSION,
            "run_id": self.run_id,
            "step": self.step,
            "guard": self.guard.state_dict() if self.guard is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken: same run, next attempt, same guard history.

        Raises:
            UsageError: If something was recorded already, or the state is of another version or guard, or damaged;
                nothing has changed then.
        """
        if self._opened or self.window.num_micros:
            raise UsageError(
                f"load_state_dict came after step {self.step} had begun to be recorded: call it right after the run "
                "is made, before the first micro_batch."
            )
        (version,) = read_entries(state, ("version",), where="the run")
        if version != STATE_VERSION:
            raise UsageError(
                f"This state is of version {spelled(version)}, expected {STATE_VERSION}: it was saved by another "
                "version of Trimtab; resume with that version, or without the state."
            )
        step, saved_id, guard_state = read_entries(state, ("step", "run_id", "guard"), where="the run")
        if read_count(step, name="step") < 1:
            raise damaged("step is 0, and the first is 1")
        if saved_id is not None:
            check_run_id(saved_id)
        if self.guard is not None and guard_state is not None:
            self.guard.load_state_dict(guard_state)
        elif self.guard is not None:
            warn("run", "The checkpoint holds no guard history: the guard starts with an empty window.")
        elif guard_state is not None:
            warn("run", "The checkpoint holds a guard history, but this run has no guard: it is left aside.")
        self.step = step
        if self._run_id is None and saved_id is not None and self._out is not None:
            if is_run_folder(run_path(self._out, saved_id)):
                self._run_id = saved_id
            elif self._record:
                warn("run", f"Run {saved_id} of the checkpoint is not under {self._out}: a new run is begun.")

    def _say_skipped(self, verdict: Verdict, *, row: int | None) -> None:
        assert self.guard is not None, "somebody skipped it"
        if verdict.reason == "nonfinite" and self.guard.nonfinite_hint is None:
            where = f"row {row} of " if row is not None else ""
            self.guard.nonfinite_hint = f"first in {where}step {self.step}"
        self._num_skips_said += 1
        compared = f", {verdict.baseline:.4g} expected" if verdict.baseline is not None else ""
        led = f"; row {row} leads it" if row is not None else ""
        last = " Further ones are not said; each is in the log." if self._num_skips_said == SKIPS_SAID else ""
        say(
            "guard",
            f"Guard skipped micro-batch {self.window.num_micros} of step {self.step}: {verdict.reason}, "
            f"loss {verdict.loss:.4g}{compared}{led}.{last}",
        )

    # The recorder.

    def _put(self, item: MicroBatch | RowIds | StepRow | Event) -> None:
        if not self._opened:
            self._open()
        if self._recorder is not None:
            self._recorder.put(item)

    def _open(self) -> None:
        self._opened = True
        assert self._out is not None, "checked when the run was made"
        now = self._clock()
        try:
            run_id = self._run_id if self._run_id is not None else new_run_id(now)
            header = replace(self._header, run_id=run_id, created=now, out=str(self._out.absolute()))
            if is_run_folder(run_path(self._out, run_id)):
                self._folder = continue_run(self._out, run_id, header)
            else:
                self._folder = create_run(self._out, header)
            recorder = Recorder(self._folder)
            if recorder.off_reason is not None:  # the disk refused its first write; said already
                self._record = False
                return
            listed = register(self._folder.header, self._folder.path)
        # A full disk, a NUL in a path, a lock that another holds, a fault of ours: this is called in the middle of a
        # training step, and nothing about recording is worth that step.
        except Exception as error:  # noqa: BLE001
            self._record = False
            warn("recorder", f"Trimtab recorder off: {reason_of(error)}")
            return
        self._recorder = recorder
        guarded = f"guard {self.config.rule}" if self.config is not None else "no guard"
        unlisted = "" if listed else " The list of runs cannot be written: name this folder to trimtab rewind."
        say("run", f"Trimtab records run {self.run_id} in {self._folder.path} ({guarded}).{unlisted}")
        if self._folder.attempt > 1:
            self._recorder.put(Event("resume", self.step, now, {"attempt": self._folder.attempt}))


def _snapshot(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are now: the writer reads them later, when the caller may have changed them."""
    try:
        return copy.deepcopy(dict(facts))
    except Exception:  # noqa: BLE001 - what cannot be copied is told by its words; an event never fails a run
        return {name: repr(value) for name, value in facts.items()}
