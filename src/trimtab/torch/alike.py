"""`AlikeRanks`: sees to it that the ranks of a run have the same guard and the same watch before figures are summed.

Enters: a run, on one of several ranks. Leaves: a `UsageError`, or a watch that measures no routers, where a sum over
ranks would have met another collective, which ends a training by gloo and hangs it by NCCL. Invariant: it calls no
collective, and a run that has neither guard nor watch never waits.
"""

from __future__ import annotations

from trimtab.errors import UsageError
from trimtab.notices import warn
from trimtab.run import RunCore
from trimtab.torch.ranks import Ranks
from trimtab.torch.told_settings import PATIENCE_S, ToldSettings


class AlikeRanks:
    """What the ranks of one run have.

    Args:
        core: The run.
        ranks: The processes that train together.
    """

    def __init__(self, core: RunCore, *, ranks: Ranks) -> None:
        self._core = core
        self._rank = ranks.rank
        self._told = ToldSettings(ranks) if not ranks.alone else None
        self._watches_agree = False

    def begin(self) -> None:
        """Tells the others before the first micro-batch what this rank has; with a guard it waits for them to tell.

        Raises:
            UsageError: This rank has a guard and another has none, which would reduce gradients meanwhile.
        """
        if self._told is None or self._told.has_told:
            return
        guard: dict[str, object] | None = {} if self._core.guard is not None else None
        watch = self._core.watch
        self._told.tell({"guard": guard, "watch": watch.settings if watch is not None else None})
        if guard is None:
            return
        found = self._told.agreed("guard", guard, patience_s=PATIENCE_S)
        if found is not None and found.lacking:
            raise UsageError(
                f"Rank {self._rank} has a guard, and {found.who_has_none('guard')}. Pass the same guard= on every "
                "rank: each decides for itself, from the same sums."
            )

    def before_report(self) -> None:
        """Compares watches, before a step ends with which figures may be summed; belongs into every step.

        One look a step until all ranks have told, which after the first reduction of gradients they have. Where a
        report is due, which is the first to sum anything, it waits. Where some rank has none, routers are left out.

        Raises:
            UsageError: All ranks have a watch, and other settings; on each of them.
        """
        watch = self._core.watch
        if self._told is None or self._watches_agree or watch is None:
            return
        is_due = self._core.step % watch.config.report_every == 0
        found = self._told.agreed("watch", watch.settings, patience_s=PATIENCE_S if is_due else 0.0)
        if found is None:
            return
        self._watches_agree = True
        if found.is_whole and found.unlike:
            unlike = ", ".join(f"{name}={value!r}" for name, value in watch.settings.items() if name in found.unlike)
            raise UsageError(
                f"The ranks have watches with different settings; rank {self._rank} has {unlike}. Pass the same watch= "
                "on every rank: figures are summed over ranks at the same steps."
            )
        if found.is_whole or not watch.settings["watches_routers"]:
            return
        watch.leave_out_routers()
        warn(
            "watch",
            f"Trimtab does not watch the routers of this run: rank {self._rank} has a watch, and "
            f"{found.who_has_none('watch')}. Pass the same watch= on every rank: their figures are summed over all.",
        )

    def end(self) -> None:
        """Says that the run has ended on this rank."""
        if self._told is not None:
            self._told.end()
        self._watches_agree = False
