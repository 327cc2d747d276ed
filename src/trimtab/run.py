"""`RunCore`: guard and recording behind the few verbs that an adapter needs; framework-free.

An adapter (the public `Run` of a loop of one's own, the Hugging Face integration) translates its host's moments into
these verbs, in this order:

    judge -> record_micro_batch      once a micro-batch; where a device decides, judge_late comes when it was heard of
    record_row_ids                   once a row, or as often as it comes
    end_step -> tell_findings        once an optimizer step; the second where the user's code may run
    evaluation, event                whenever
    close                            at the end

What enters are numbers and array-likes; what leaves is a verdict, the log, findings, and a `state_dict`. Nothing that
goes wrong while recording or watching is raised into training; an error in a decision is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.first_steps import Continuity
from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.guard.counts import WindowCounts
from trimtab.guard.figures import Leader, MicroFigures
from trimtab.guard.words import GuardWords
from trimtab.notices import warn_once, warn_setting
from trimtab.recorder.meeting import Meeting
from trimtab.recording import Recording
from trimtab.rules.schedule import SCHEDULE_EVENT, Schedule
from trimtab.run_state import LossPer, RunState
from trimtab.values import STEP_CODE, MicroBatch, RowIds, RunHeader, StepReason, StepRow, Verdict
from trimtab.watched import EVALUATION_EVENT
from trimtab.watching import Watch

FLUSH_TIMEOUT_S: Final = 10.0


def switched_off() -> bool:
    """Whether `TRIMTAB=off` in the environment asks Trimtab to do nothing; said once a process."""
    if os.environ.get("TRIMTAB", "").strip().lower() != "off":
        return False
    warn_once("run", "Trimtab does nothing: TRIMTAB=off is set in the environment.", cause="switched off")
    return True


class RunCore:
    """One training run: which step it is in, what its guard decides, and where it is recorded.

    Attributes:
        config: Settings of the guard; None where there is none.
        is_first_rank: Whether this rank speaks for the run where one line is enough.
        guard: The guard that decides, or that decides once more what a device has decided.
        window: The accumulation window that is being filled.
        step: Optimizer step (1-based) that it belongs to.
        words: What is said of it.
        continuity: How it goes on after a resume.
        watch: What looks after its health; None where nothing does.
    """

    def __init__(
        self,
        header: RunHeader,
        *,
        out: str | os.PathLike[str] | None = None,
        guard: GuardConfig | None = None,
        record: bool = True,
        run_id: str | None = None,
        meet: Callable[[], Meeting] | None = None,
        rank: int = 0,
        loss_per: LossPer = "token",
        watch: Callable[..., Watch] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepares a run; nothing is written yet.

        Args:
            header: What is known about the run; see `Recording` for this, `out`, `record`, `run_id` and `clock`.
            out: Folder under which the run folder is made.
            guard: Settings of the guard; None: nothing is ever skipped or dropped.
            record: Whether the run is recorded.
            run_id: The run to continue, or a name for a new one.
            meet: Gives the place where the ranks of this run meet; None: this process alone records.
            rank: This process's place among those that decide alike, where they do not meet.
            loss_per: What the losses that are judged are means over: a state of the other kind is refused.
            watch: Makes the watch of this run, given its `rank`, `log` and `clock`; None: nothing is watched.
            clock: Seconds since the epoch.

        Raises:
            UsageError: If `run_id` cannot be a folder name, or `out` is missing while recording.
        """
        if guard is not None and not guard.enabled:
            warn_setting(
                "The guard that was handed over is off (rule 'mean' with multiplier None), so nothing will be "
                'skipped: pass GuardConfig(rule="robust"), or GuardConfig(multiplier=2.0), or guard=None.'
            )
            guard = None
        self.config = guard
        self.window = WindowCounts()
        self.step = 1
        rule = guard.rule if guard is not None else None
        meeting = meet() if meet is not None else None
        rank = meeting.rank if meeting is not None else rank
        # Every rank's guard decides alike; one of them tells.
        self.is_first_rank = rank == 0
        self.guard = PerTokenLossGuard.from_config(guard, quiet=rank > 0) if guard is not None else None
        self._recording = Recording(
            header, out=out, run_id=run_id, record=record, clock=clock, rule=rule, meeting=meeting
        )
        self._loss_per = loss_per
        self._clock = clock
        self._last_step_ended: float | None = None
        self.continuity = Continuity(rank=rank, clock=clock)
        self.words = GuardWords(rank=rank)
        self.watch = watch(rank=rank, log=self._recording, clock=clock) if watch is not None else None
        self._observe()

    def state_schedule(self, schedule: Schedule) -> None:
        """Has the learning rates that were asked for written down with the first micro-batch of this attempt."""
        self._recording.open_with(SCHEDULE_EVENT, schedule.to_facts())

    # What the adapter asks.

    @property
    def run_id(self) -> str | None:
        """The run's id; None while nothing was recorded and none was given."""
        return self._recording.run_id

    @property
    def has_begun(self) -> bool:
        """Whether anything was recorded: no other run can be continued then."""
        return self._recording.has_begun

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded, and for good with `record=False`."""
        return self._recording.folder

    def judge(self, figures: MicroFigures, *, leading_row: Callable[[], Leader | None] = lambda: None) -> Verdict:
        """Decides about the micro-batch at hand, before its backward, and counts it in its window.

        Args:
            figures: What it is judged by.
            leading_row: Finds the row that leads the micro-batch; called only for one that is skipped.

        Returns:
            The guard's verdict.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up.
        """
        window = self.window
        verdict = self.judge_late(figures, step=self.step, micro=window.num_micros, leading_row=leading_row)
        _, num_tokens = figures.judged
        window.count(skipped=int(not verdict.keep), num_tokens=num_tokens, num_own_tokens=figures.num_tokens)
        return verdict

    def judge_late(
        self, figures: MicroFigures, *, step: int, micro: int, leading_row: Callable[[], Leader | None] = lambda: None
    ) -> Verdict:
        """Decides once more what a device has decided by the same figures: for the words, the rates and the state.

        Call it once a micro-batch, in their order; their windows may be over.

        Args:
            figures: As in `judge`.
            step: Step of the micro-batch.
            micro: 0-based place in that step.
            leading_row: As in `judge`.

        Returns:
            The guard's verdict, which is that of the device.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up.
        """
        assert self.guard is not None, "judging belongs to a run with a guard"
        verdict = self.guard.check(*figures.judged, step=step)
        if verdict.keep:
            return verdict
        is_cause = figures.cause(verdict)
        if self.words.says_skip(is_cause=is_cause):
            leader = leading_row() if is_cause and not figures.is_of_a_term(verdict) else None
            if verdict.reason == "nonfinite" and self.guard.nonfinite_hint is None:
                where = f"row {leader.row} of " if leader is not None else ""
                self.guard.nonfinite_hint = f"first in {where}step {step}"
            self.words.skipped(verdict, step=step, micro=micro, leader=leader, is_cause=is_cause)
        return verdict

    def record_micro_batch(
        self,
        rows: Any,
        loss_sums: Any,
        num_tokens: Any,
        *,
        reason: Any = 0,
        keep: Any = True,
        packed: bool = False,
    ) -> None:
        """Hands one micro-batch to the recorder; the arguments are those of `MicroBatch`.

        Never raises. The first call makes the run folder and its entry in the list of runs (at most half a second, if
        another process holds the list); later ones never wait.

        Args:
            rows: As there.
            loss_sums: As there.
            num_tokens: As there.
            reason: Index into `VERDICT_REASONS`; it and `keep` may be numbers still on their way to the host.
            keep: Whether it takes part in the update.
            packed: As there.
        """
        if self.watch is not None and not self.watch.has_begun:
            self.watch.begin(self.step)
        micro = self.window.next_micro()
        item = MicroBatch(self.step, micro, rows, loss_sums, num_tokens, reason, keep, packed)
        self._recording.put(item, step=self.step)

    def record_row_ids(self, ids: RowIds) -> None:
        """Hands what rows are beside their number to the recorder; once a row is enough. Never raises or waits."""
        self._recording.put(ids, step=self.step)

    def begin_step(self, step: int) -> None:
        """Tells which optimizer step (1-based) comes now; for hosts that keep their own count."""
        self.step = step
        self.window = WindowCounts()

    def end_step(
        self,
        reason: StepReason | Any = "stepped",
        *,
        loss: Any = float("nan"),
        num_tokens: Any = 0,
        grad_norm: Any = None,
        lr: Any = None,
        clipped: Any = None,
        loss_scale: Any = None,
        num_skipped_micros: Any = None,
        num_skipped_tokens: Any = None,
    ) -> None:
        """Records the optimizer step that just ended, and opens the next window.

        Args:
            reason: What became of it, or its index into `STEP_REASONS`, which may still be on its way to the host.
            loss: As in `StepRow`, as are the four below.
            num_tokens: As there.
            grad_norm: As there.
            lr: As there.
            clipped: As there.
            loss_scale: As there.
            num_skipped_micros: As there; None: as the window has counted them.
            num_skipped_tokens: As there; None: as the window has counted this rank's.
        """
        now = self._clock()
        wall_s = now - self._last_step_ended if self._last_step_ended is not None else float("nan")
        self._last_step_ended = now
        window = self.window
        item = StepRow(
            self.step,
            loss,
            grad_norm,
            lr,
            STEP_CODE[reason] if isinstance(reason, str) else reason,
            clipped,
            loss_scale,
            wall_s,
            num_tokens,
            window.num_skipped_micros if num_skipped_micros is None else num_skipped_micros,
            window.num_own_skipped_tokens if num_skipped_tokens is None else num_skipped_tokens,
        )
        if self.watch is not None:  # before it is recorded: what is collected here is judged behind it
            self.watch.end_step(item)
        self._recording.put(item, step=self.step)
        self.continuity.put(item, is_recorded=self._recording.is_on)
        self.begin_step(self.step + 1)

    def tell_findings(self) -> None:
        """Calls the user's `on_finding` for what was found since; belongs between two steps, where nothing is open."""
        if self.watch is not None:
            self.watch.tell_findings()

    def event(self, kind: str, facts: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records that something happened during `step`, by default the present one."""
        event = self._recording.event(kind, facts, step=self.step, of_step=step)
        if self.watch is not None:
            self.watch.take_event(event)

    def evaluation(self, loss: float, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records the result of an evaluation; it never mixes with the training loss.

        `step` (1-based) is that whose weights were evaluated; None: the last that has ended, or that of an open window.
        """
        if step is None and not self.window.num_micros:
            step = self.step - 1
        self.event(EVALUATION_EVENT, {"loss": loss, **metrics}, step=step)

    def flush(self, *, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Waits until what was recorded up to now is handed to the operating system: a kill does not lose it.

        Whoever saves a checkpoint calls it after `state_dict`, on every rank, so that no step before the checkpoint is
        missing from the log. Never raises. It waits for numbers that are still on their way from a device, too.

        Args:
            timeout_s: Seconds that it waits at most, for a slow disk.

        Returns:
            Whether all of it is there; True where nothing is recorded. A rank that has not heard from rank 0 yet where
            to write keeps what it has in memory, and does not wait.
        """
        return self._recording.flush(timeout_s=timeout_s)

    def close(self, *, reason: str = "closed") -> bool:
        """Ends the run: writes what is pending. A second call does nothing.

        Args:
            reason: "closed", or the name of the exception that ended the run.

        Returns:
            Whether there was a log to close.
        """
        waits = reason == "closed"  # else a device may be the error's cause: nobody waits
        if waits and not self._recording.is_on:
            self.continuity.close()
        had_log = self._recording.close(reason=reason, step=self.step)
        if self.watch is not None:
            self.watch.close(waits=waits)
        return had_log

    # State.

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values, with the last losses and rates: put it into every checkpoint.

        Take it between two windows; it waits for losses that are still on their way from a device, and with a watch
        until that has judged them.

        Returns:
            A dict of str, int, float, list and dict only.
        """
        return RunState(
            run_id=self.run_id,
            step=self.step,
            loss_per=self._loss_per,
            guard=self.guard.state_dict() if self.guard is not None else None,
            before=self.continuity.before(attempt=self._recording.attempt, num_ranks=self._recording.num_ranks),
            watch=self.watch.state_dict() if self.watch is not None else None,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken: same run, next attempt, same guard history.

        What the next steps are like is compared with what came before (`trimtab.first_steps`).

        Raises:
            UsageError: If something was recorded already, or the state is of another version or guard, or damaged;
                nothing has changed then.
        """
        self.refuse_if_begun()
        saved = RunState.from_dict(state)
        saved.check_watch(self.watch)
        saved.put_guard(self.guard, loss_per=self._loss_per, says=self.is_first_rank)
        saved.put_watch(self.watch, says=self.is_first_rank)
        self.step = saved.step
        self.continuity.go_on(saved.before, step=saved.step, watches=not switched_off())
        self._observe()
        folder = self._recording.continue_from(saved.run_id)
        if folder is not None:
            header = self._recording.header
            self.continuity.compare_with(folder, num_rows=header.num_rows, num_ranks=header.world_size)

    def refuse_if_begun(self) -> None:
        """Refuses with `UsageError` to take a state over where something was recorded, or a window is open."""
        if self.has_begun or self.window.num_micros:
            raise UsageError(
                f"load_state_dict came after step {self.step} had begun to be recorded: call it right after the run "
                "is made, before the first micro_batch."
            )

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `load_state_dict` would refuse of a state; changes nothing, and says nothing.

        Raises:
            UsageError: As there.
        """
        saved = RunState.from_dict(state)
        saved.check_guard(self.guard, loss_per=self._loss_per)
        saved.check_watch(self.watch)

    # Within.

    def _observe(self) -> None:
        """Has what looks at the steps see them in the recorder's thread."""
        looks = (self.continuity.first_steps, self.watch.judging if self.watch is not None else None)
        self._recording.observe_by(*(one for one in looks if one is not None))
