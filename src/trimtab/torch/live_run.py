"""`LiveRun`: what is asked of a run beside its steps, whoever drives them: evaluations, its state, health and end.

Enters: results and facts, at any time; a state, before the first micro-batch. Leaves: what goes into a checkpoint, and
what a checkpoint is told of the run's health. Invariant: nothing here changes a weight, and what may wait says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

from trimtab.errors import GuardLockupError
from trimtab.notices import say
from trimtab.run import RunCore
from trimtab.torch.gate import Gate
from trimtab.torch.settings import saved_divisor
from trimtab.torch.watch_of import ChosenWatch
from trimtab.torch.window import WindowMean
from trimtab.watching import Watch


class LiveRun:
    """A run that is recorded, guarded and watched, but for its steps."""

    def __init__(self, gate: Gate, *, mean: WindowMean, watching: ChosenWatch | None) -> None:
        """Takes what a run is made of.

        Args:
            gate: What stands between its losses and its weights; its core records. A host that begins another training
                puts another one in its place.
            mean: What its loss is a mean over.
            watching: How it is watched; None: it is not.
        """
        self._gate = gate
        self._mean = mean
        self._watching = watching

    def evaluation(self, loss: SupportsFloat, **metrics: Any) -> None:
        """Records an evaluation of the weights as the last step has left them; waits if `loss` is on a device.

        Args:
            loss: Of data that is not trained on. A watch counts how often in a row it has become worse.
            metrics: JSON-ready. Of several datasets the loss of each, by its name (`eval_code_loss`), is watched too.
        """
        self._core.evaluation(float(loss), metrics)

    def event(self, kind: str, **facts: Any) -> None:
        """Records that something happened, with JSON-ready facts."""
        self._core.event(kind, facts)

    def flush(self) -> bool:
        """Hands what was recorded up to now to the operating system, so that a kill does not lose it. Never raises.

        For whoever saves a checkpoint: after `state_dict`, on every rank. Waits for the disk, and for losses that are
        on their way from a device, 10 seconds at most.

        Returns:
            Whether all of it is there; False, and at once, where a rank above 0 has not heard yet where to write.
        """
        return self._core.flush()

    def unhealthy_because(self) -> tuple[str, ...]:
        """Why a checkpoint that is saved now is none to go on from, a sentence each; none without a watch.

        Waits until the watch has judged all steps up to now, 10 seconds at most. On ranks above 0 it is told of their
        own memory only.
        """
        watch = self._core.watch
        return watch.unhealthy_because() if watch is not None else ()

    def watch_figures(self) -> dict[str, Any]:
        """What the watch counts beside its findings: how often clipping acts, the streak of evaluations, the best.

        For whoever logs or prints an evaluation; empty without a watch. Waits as `unhealthy_because`; on ranks above 0
        nothing is known.

        Returns:
            JSON-ready, None where nothing is known: `clip_fraction` over the run and `recent_clip_fraction` over the
            last 200 steps that were taken; `num_nonfinite_norms` and `num_stale_norms`; `tokens_per_s`, the usual ones;
            `evaluations`, by the dataset's name ("" where there is one only): `best`, `best_step` and `num_worse`, the
            evaluations in a row that were worse than the one before.
        """
        watch = self._core.watch
        return watch.figures() if watch is not None else {}

    def unhealthy_since(self) -> int | None:
        """The last step after which nothing of that was so, as far as is known: what was saved since may have it.

        None where there is nothing, and where nobody knows. Waits likewise.
        """
        watch = self._core.watch
        return watch.unhealthy_since() if watch is not None else None

    def before_save(self, needed_bytes: int) -> None:
        """Has the watch look at the host's memory before so many bytes are taken for a save; never raises."""
        if self._core.watch is not None:
            self._core.watch.before_save(needed_bytes, step=self._core.step - 1)

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values: run id, step, guard history, last losses. Put it into every checkpoint.

        Waits for the device, and where that decides may raise `GuardLockupError` then; with a watch, whose rules' state
        is in it, until that has judged all steps up to now.
        """
        self._gate.drain()
        return {**self._core.state_dict(), "divisor": self._mean.divisor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the run of the checkpoint as its next attempt; call it before the first `micro_batch`.

        With `record=False` it may also be called later, between two windows. Waits for the device where that decides.

        Raises:
            UsageError: If something was recorded already, or the state is of another version or guard.
        """
        divisor = saved_divisor(state)
        self._gate.load_state_dict(state)
        self._mean.divisor = divisor

    @property
    def run_id(self) -> str | None:
        """The run's id; None until something was recorded."""
        return self._core.run_id

    @property
    def folder(self) -> Path | None:
        """The run folder; None until something was recorded."""
        return self._core.folder

    @property
    def num_skipped(self) -> int:
        """Micro-batches that the guard has skipped; 0 without one. Waits and raises as `state_dict`."""
        self._gate.drain()
        return self._core.guard.num_skipped if self._core.guard is not None else 0

    def close(self) -> None:
        """Writes what is pending and ends the run; a second call does nothing. Waits for the device.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up, and the host hears of one only now.
        """
        self._end("closed")

    def __enter__(self) -> Self:
        """Gives the run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the run, naming the error that ended it, if any."""
        self._end("closed" if kind is None else kind.__name__)

    # Within.

    def _end(self, reason: str) -> None:
        num_steps = self._core.step - 1
        try:
            if reason == "closed":
                self._gate.drain()
            else:  # nobody waits for a device that may be the error's cause, or asks one that has failed
                with suppress(RuntimeError):
                    self._gate.leave(waits=False)
        except GuardLockupError as error:
            reason = type(error).__name__
            raise
        finally:
            self._gate.remove()
            if self._watching is not None:
                self._watching.remove()
            if self._core.close(reason=reason) and self._core.is_first_rank:
                said = _said_by(self._core.watch)
                say("run", f"Trimtab recorded the run up to step {num_steps}{said}: trimtab rewind {self.run_id}")

    @property
    def _core(self) -> RunCore:
        return self._gate.core


def _said_by(watch: Watch | None) -> str:
    """How often its watch has spoken; how many findings there are is said by `rewind`, which sees all of the log."""
    if watch is None or not watch.num_findings:
        return ""
    return f", and its watch has spoken {'once' if watch.num_findings == 1 else f'{watch.num_findings} times'}"
