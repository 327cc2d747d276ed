"""What a run puts into a checkpoint, as plain values, and reads back.

Enters: what a run knows between two windows, or a state that was saved. Leaves: a dict of str, int, float, list and
dict only, or a `RunState`. Invariant: a state is refused as a whole, before anything of it is taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from trimtab.errors import UsageError
from trimtab.guard import PerTokenLossGuard
from trimtab.log.folder import check_run_id
from trimtab.notices import warn
from trimtab.resume.before import Before
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.watching import Watch

STATE_VERSION: Final = 3

LossPer = Literal["token", "micro-batch"]
"""What a guard's losses are means over: the supervised tokens, or the micro-batches, of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run goes on with.

    Attributes:
        run_id: The run; None where nothing was recorded.
        step: Optimizer step (1-based) that comes next.
        loss_per: What the losses in the guard's history are means over.
        guard: The guard's history; None without a guard.
        before: The last losses and rates.
        watch: What the watch has seen; None without one.
    """

    run_id: str | None
    step: int
    loss_per: Any
    guard: Any
    before: Before
    watch: Any

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": STATE_VERSION,
            "run_id": self.run_id,
            "step": self.step,
            "loss_per": self.loss_per,
            "guard": self.guard,
            "before": self.before.to_dict(),
            "watch": self.watch,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; `UsageError` for another version, or what is damaged."""
        (version,) = read_entries(state, ("version",), where="the run")
        if type(version) is not int or version != STATE_VERSION:  # True is 1 to Python
            raise UsageError(
                f"This state is of version {spelled(version)}, expected {STATE_VERSION}: it was saved by another "
                "version of Trimtab; resume with that version, or without the state."
            )
        entries = ("step", "run_id", "loss_per", "guard", "before", "watch")
        step, run_id, loss_per, guard, before, watch = read_entries(state, entries, where="the run")
        if read_count(step, name="step") < 1:
            raise damaged("step is 0, and the first is 1")
        if run_id is not None:
            check_run_id(run_id)
        return cls(
            run_id=run_id, step=step, loss_per=loss_per, guard=guard, before=Before.from_dict(before), watch=watch
        )

    def check_guard(self, guard: PerTokenLossGuard | None, *, loss_per: LossPer) -> None:
        """Refuses what `put_guard` would refuse; changes nothing, and says nothing.

        Raises:
            UsageError: As there.
        """
        if guard is None or self.guard is None:
            return
        self._refuse_other_losses(loss_per)
        PerTokenLossGuard.from_config(guard.config, quiet=True).load_state_dict(self.guard)

    def put_guard(self, guard: PerTokenLossGuard | None, *, loss_per: LossPer, says: bool) -> None:
        """Gives a guard its history, an empty one where the state holds none.

        Args:
            guard: The guard of the run that goes on; None: it has none.
            loss_per: What the losses that it judges are means over.
            says: Whether to say where a history is missing or left aside.

        Raises:
            UsageError: The history is of losses of the other kind, or of another guard, or damaged; nothing has
                changed then.
        """
        if guard is None:
            if says and self.guard is not None:
                warn("run", "The checkpoint holds a guard history, but this run has no guard: it is left aside.")
        elif self.guard is not None:
            self._refuse_other_losses(loss_per)
            guard.load_state_dict(self.guard)
        else:
            guard.load_state_dict(PerTokenLossGuard.from_config(guard.config, quiet=True).state_dict())
            if says:
                warn("run", "The checkpoint holds no guard history: the guard starts with an empty window.")

    def check_watch(self, watch: Watch | None) -> None:
        """Refuses what `put_watch` would refuse; changes nothing, and says nothing.

        Raises:
            UsageError: As there.
        """
        if watch is not None and self.watch is not None:
            watch.check_state(self.watch)

    def put_watch(self, watch: Watch | None, *, says: bool) -> None:
        """Gives a watch what it had seen.

        Args:
            watch: The watch of the run that goes on; None: it has none.
            says: Whether to say where that is missing or left aside.

        Raises:
            UsageError: It is another watch's, or damaged; nothing has changed then.
        """
        if watch is None:
            if says and self.watch is not None:
                warn("run", "The checkpoint holds what a watch has seen, but this run has none: it is left aside.")
        elif self.watch is not None:
            watch.load_state_dict(self.watch)
        elif says:
            warn("run", "The checkpoint holds nothing that a watch has seen: the watch starts anew.")

    def _refuse_other_losses(self, loss_per: LossPer) -> None:
        if self.loss_per != loss_per:
            raise UsageError(
                f"This state holds a history of losses per {spelled(self.loss_per)}, and the guard here judges losses "
                f"per {loss_per}: a LossKit judges the mean of micro-batches, a TokenNormedLossKit and a Run that of "
                "tokens. Load the state into the kind that saved it, or leave it out: the history then starts empty."
            )
