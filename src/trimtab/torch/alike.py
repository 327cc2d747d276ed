"""`AlikeRanks`: sees to it that all ranks of a run watch alike before figures of routers are summed over them.

Enters: a run, on one of several ranks. Leaves: a `UsageError` on every rank, or a watch that measures no routers, where
a sum over ranks would have met another collective. Invariant: it calls no collective, and a run that sums no figures of
routers neither asks nor waits.
"""

from __future__ import annotations

from trimtab.errors import UsageError
from trimtab.notices import warn
from trimtab.run import RunCore
from trimtab.text import listed
from trimtab.torch.consent import SumConsent
from trimtab.torch.ranks import Ranks


class AlikeRanks:
    """What the ranks of one run watch.

    Args:
        core: The run.
        ranks: The processes that train together.
    """

    def __init__(self, core: RunCore, *, ranks: Ranks) -> None:
        self._core = core
        self._ranks = ranks
        self._consent: SumConsent | None = None
        self._is_settled = ranks.alone

    def begin(self) -> None:
        """Offers to sum, before the first micro-batch of a run that has routers to watch. Never waits."""
        watch = self._core.watch
        if self._is_settled or self._consent is not None or watch is None or not watch.settings["watches_routers"]:
            return
        self._consent = SumConsent(self._ranks, watch.settings)

    def before_report(self) -> None:
        """Settles whether figures are summed; belongs into every step, before it ends.

        One look a step until all have accepted, which after some reductions of gradients they have. Where a report is
        due, which is the first to sum anything, it waits. Where some rank does not watch, routers are left out.

        Raises:
            UsageError: All ranks have a watch, and other settings; on each of them, at the end of the same step.
        """
        watch, consent = self._core.watch, self._consent
        if self._is_settled or consent is None or watch is None:
            return
        step = self._core.step
        answer = consent.look(step, waits=step % watch.config.report_every == 0)
        if answer is None:
            return
        self._is_settled = True
        rank = self._ranks.rank
        if answer.outcome == "unlike":
            unlike = ", ".join(f"{name}={value!r}" for name, value in watch.settings.items() if name in answer.unlike)
            raise UsageError(
                f"The ranks have watches with different settings; rank {rank} has {unlike}. Pass the same watch= on "
                "every rank: figures are summed over ranks at the same steps."
            )
        if answer.outcome == "some":
            watch.leave_out_routers()
            who = listed(map(str, answer.missing), most=8) if answer.missing else ""
            others = f"rank {who} has not" if len(answer.missing) == 1 else f"ranks {who} have not"
            why = f"{others}, or came late to its first report" if who else "the ranks could not ask each other"
            warn(
                "watch",
                f"Trimtab does not watch the routers of this run: rank {rank} has a watch, and {why}. Pass the "
                "same watch= on every rank: their figures are summed over all.",
            )

    def end(self) -> None:
        """Says that the run has ended on this rank."""
        if self._consent is not None:
            self._consent.end()
        self._consent = None
        self._is_settled = self._ranks.alone
