"""`RunCore`: guard and recording behind the few verbs that an adapter needs; framework-free.

An adapter (the public `Run` of a loop of one's own, the Hugging Face integration) translates its host's moments into
these verbs, in this order:

    judge -> record_micro_batch      once a micro-batch
    record_row_ids                   once a row, or as often as it comes
    drop_reason -> end_step          once an optimizer step
    evaluation, event                whenever
    close                            at the end

What enters are numbers and array-likes; what leaves is a verdict, the log, and a `state_dict`. Nothing that goes wrong
while recording is raised into training; an error in a decision is.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.log.folder import check_run_id
from trimtab.notices import say, warn, warn_once, warn_setting
from trimtab.recording import Recording
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.values import (
    STEP_REASONS,
    VERDICT_REASONS,
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
            header: What is known about the run; see `Recording` for this, `out`, `record`, `run_id` and `clock`.
            out: Folder under which the run folder is made.
            guard: Settings of the guard; None: nothing is ever skipped or dropped.
            record: Whether the run is recorded.
            run_id: The run to continue, or a name for a new one.
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
        self.guard = PerTokenLossGuard.from_config(guard) if guard is not None else None
        self.window = WindowCounts()
        self.step = 1
        rule = guard.rule if guard is not None else None
        self._recording = Recording(header, out=out, run_id=run_id, record=record, clock=clock, rule=rule)
        self._clock = clock
        self._last_step_ended: float | None = None
        self._num_skips_said = 0
        self._said_no_tokens = False

    # What the adapter asks.

    @property
    def run_id(self) -> str | None:
        """The run's id; None while nothing was recorded and none was given."""
        return self._recording.run_id

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded, and for good with `record=False`."""
        return self._recording.folder

    def judge(
        self,
        loss_sum: float,
        num_tokens: int,
        *,
        aux: float = 0.0,
        beyond: float = 0.0,
        leading_row: Callable[[], int | None] = lambda: None,
    ) -> Verdict:
        """Decides about the micro-batch at hand, before its backward.

        Args:
            loss_sum: Sum of its loss over supervised tokens.
            num_tokens: Their count.
            aux: Sum of its further loss terms; the micro-batch is skipped if this is not finite.
            beyond: What its loss holds beside that of its tokens, in the unit of their mean: it is judged with it.
            leading_row: Finds the row that leads the micro-batch; called only for one that is skipped.

        Returns:
            The guard's verdict.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up.
        """
        assert self.guard is not None, "judge() belongs to a run with a guard"
        # A term that is not finite poisons the gradient as surely as the loss itself; times zero keeps any other.
        verdict = self.guard.check(loss_sum + aux * 0.0 + beyond * num_tokens, num_tokens, step=self.step)
        self.window.num_tokens += num_tokens
        if not verdict.keep:
            # With finite losses a further term is what is not finite, and no row is to blame; nor for a spike that is
            # mostly such a term.
            is_term = math.isfinite(loss_sum) if verdict.reason == "nonfinite" else 2 * abs(beyond) > abs(verdict.loss)
            if self._num_skips_said < SKIPS_SAID:
                self._say_skipped(verdict, row=None if is_term else leading_row())
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
        reason, keep = (0, True) if verdict is None else (_REASON_CODE[verdict.reason], verdict.keep)
        item = MicroBatch(self.step, micro, rows, loss_sums, num_tokens, reason, keep, packed)
        self._recording.put(item, step=self.step)

    def record_row_ids(self, ids: RowIds) -> None:
        """Hands what rows are beside their number to the recorder; once a row is enough. Never raises or waits."""
        self._recording.put(ids, step=self.step)

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
        item = StepRow(
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
        self._recording.put(item, step=self.step)
        self.begin_step(self.step + 1)

    def event(self, kind: str, facts: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records that something happened during `step`, by default the present one."""
        self._recording.event(kind, facts, step=self.step, of_step=step)

    def evaluation(self, loss: float, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """Records the result of an evaluation; it never mixes with the training loss."""
        self.event("evaluation", {"loss": loss, **metrics}, step=step)

    def flush(self, *, timeout_s: float = 30.0) -> bool:
        """Waits until everything handed over is on disk; False if it took longer than `timeout_s`."""
        return self._recording.flush(timeout_s=timeout_s)

    def close(self, *, reason: str = "closed") -> bool:
        """Ends the run: writes what is pending. A second call does nothing.

        Args:
            reason: "closed", or the name of the exception that ended the run.

        Returns:
            Whether there was a log to close.
        """
        return self._recording.close(reason=reason, step=self.step)

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
        if self._recording.has_begun or self.window.num_micros:
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
        if saved_id is not None:
            self._recording.continue_from(saved_id)

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
