"""`Judge`: one micro-batch's figures, and the decision about it.

Enters: the reduced losses of a micro-batch, on this rank. Leaves: a `Decision`, alike on every rank, and the guard's
words. Invariants: figures are copies, the caller's loss is never changed; every rank calls the same collectives, one
sum of three numbers a micro-batch, and before the first one of settings, whatever its losses are; host and device
decide alike, verdict for verdict.

    on the host      figures -> sum over ranks -> the guard                   waits for the figures, and for the sum
    on the device    figures -> sum over ranks -> the rule as tensor code     waits where the sum does, as on gloo
                        ` - - - - - - - - - - - -> the guard, when they have arrived: words, rates, state
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from trimtab.guard.figures import Leader, MicroFigures, sum_to_judge
from trimtab.run import RunCore
from trimtab.torch.decision import Decision
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.figures import HeardFigures, Shown, counts_here, is_finite_number, judged_together
from trimtab.torch.late import LateFigures
from trimtab.torch.losses import RowLosses
from trimtab.torch.ranks import Ranks
from trimtab.torch.transfer import HostNumber, has_side_stream, to_host
from trimtab.values import REASON_CODE, Verdict

_CODE, _KEEP = map(HeardFigures._fields.index, ("code", "keep"))

LeadingRow = Callable[[], Leader | None]


class Judgement(NamedTuple):
    """A decision, and what the log holds of it.

    Attributes:
        decision: The decision.
        reason: Index into `VERDICT_REASONS`; a number, or one on its way to the host.
        keep: The verdict, likewise.
    """

    decision: Decision
    reason: Any
    keep: Any


class Judge:
    """Decides about the micro-batches of one run that has a guard.

    Where is settled at the first micro-batch, by `GuardConfig.decide` and the device of its loss.
    """

    def __init__(self, core: RunCore, *, ranks: Ranks, late: LateFigures) -> None:
        """Judges for a run.

        Args:
            core: The run; it has a guard.
            ranks: The processes that decide together.
            late: Where figures go that the host hears of later.
        """
        self._core = core
        self._ranks = ranks
        self._late = late
        self._on_device: bool | None = None
        self._rule: DeviceRule | None = None
        self._is_agreed = False
        self._last_step = 0

    @property
    def on_device(self) -> bool:
        """Whether the device decides; False while that is not settled."""
        return bool(self._on_device)

    def judge(
        self,
        micro_batch: RowLosses,
        *,
        extra: torch.Tensor | None,
        beyond: torch.Tensor | None,
        leading_row: LeadingRow,
    ) -> Judgement:
        """Decides about the micro-batch at hand; for the arguments, and for what waits when, see `Gate.take`.

        Args:
            micro_batch: Its losses.
            extra: 0-d or None.
            beyond: 0-d or None.
            leading_row: Finds the row that leads it, from what is on its way to the host already.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up, and the host decides.
            UsageError: If another rank's guard has other settings or another history; told at the first micro-batch,
                and at the first one after a state was loaded.
        """
        own = _own_figures(micro_batch, extra=extra, beyond=beyond)
        has_terms = extra is not None or beyond is not None
        if self._on_device is None:
            self._settle(own.device)
        if not self._is_agreed:
            guard = self._core.guard
            assert guard is not None, "a judge belongs to a run with a guard"
            # A state that one rank has loaded and another has not would make verdicts of their own, too.
            self._ranks.refuse_unlike({**guard.config.saved, "history": guard.history.told})
            self._is_agreed = True
        if self._on_device:
            return self._on_the_device(own, micro_batch.num_tokens, leading_row, has_terms=has_terms)
        return self._on_the_host(own, leading_row, has_terms=has_terms)

    def _settle(self, device: torch.device) -> None:
        guard = self._core.guard
        assert guard is not None, "a judge belongs to a run with a guard"
        decide = guard.config.decide
        # Unasked, a device decides where the host hears of it without waiting: else the host would wait all the same.
        # A lock-up that is to raise is heard of by each rank at a time of its own, so the host decides then as well.
        # mps decides nothing, also where it is asked to: it has no float64.
        is_fit = has_side_stream(device) and guard.config.on_lockup != "raise"
        self._on_device = (decide == "device" or (decide == "auto" and is_fit)) and device.type != "mps"
        if self._on_device:
            self._rule = DeviceRule(guard.config, device=device)
            self.load()

    def load(self) -> None:
        """Goes on from the history that the host's guard has now; waits for the device where that decides.

        Among ranks the next micro-batch compares what each has loaded. One that alone has loaded anything then calls a
        collective more than the others, which gloo ends and NCCL waits for: better than verdicts of its own.
        """
        self._is_agreed = False
        if self._rule is None:
            return
        guard = self._core.guard
        assert guard is not None, "a judge belongs to a run with a guard"
        self._rule.load(guard.history)
        self._last_step = guard.history.last_step or 0

    def _on_the_host(self, own: torch.Tensor, leading_row: LeadingRow, *, has_terms: bool) -> Judgement:
        own = own.to("cpu", torch.float64)  # one read of the host for all figures; mps has no float64
        loss_sum, tokens, aux, beyond = own.tolist()
        figures = MicroFigures(loss_sum, int(tokens), aux, beyond)
        own_sum = figures.own_sum
        if not self._ranks.alone:
            shown = Shown.of(torch.tensor(own_sum, dtype=torch.float64), own[1])
            summed = self._ranks.summed(torch.stack(shown))
            figures = figures._replace(together=judged_together(*summed.tolist()))
        verdict = self._core.judge(figures, leading_row=leading_row)
        counts = counts_here(verdict.keep, has_tokens=tokens > 0, is_finite=math.isfinite(own_sum), has_terms=has_terms)
        return Judgement(Decision(verdict.keep, counts), reason=REASON_CODE[verdict.reason], keep=verdict.keep)

    def _on_the_device(
        self, own: torch.Tensor, num_tokens: torch.Tensor, leading_row: LeadingRow, *, has_terms: bool
    ) -> Judgement:
        core = self._core
        assert self._rule is not None, "made when it was settled who decides"
        if core.step < self._last_step:
            self._rule.reset()  # as the guard will, when it hears of it
        self._last_step = core.step

        own_sum, tokens = sum_to_judge(*own.unbind()), own[1]
        together = self._ranks.summed(torch.stack(Shown.of(own_sum, tokens)))
        ruling = self._rule.decide(*together.unbind())
        core.window.count(
            skipped=(~ruling.keep).to(torch.int64),
            num_tokens=together[1].to(torch.int64),
            num_own_tokens=num_tokens,
        )
        copy = to_host(HeardFigures.on_device(together, own, ruling))
        hear = partial(self._hear, step=core.step, micro=core.window.num_micros, leading_row=leading_row)
        self._late.add(copy, hear)
        counts = counts_here(
            ruling.keep, has_tokens=tokens > 0, is_finite=is_finite_number(own_sum), has_terms=has_terms
        )
        return Judgement(Decision(ruling.keep, counts), reason=HostNumber(copy, _CODE), keep=HostNumber(copy, _KEEP))

    def _hear(self, numbers: list[float], *, step: int, micro: int, leading_row: LeadingRow) -> None:
        """Lets the guard decide once more, by the same figures."""
        heard = HeardFigures(*numbers)
        figures = heard.figures(alone=self._ranks.alone)
        verdict = self._core.judge_late(figures, step=step, micro=micro, leading_row=leading_row)
        if verdict.reason != heard.reason:
            self._tell_disagreement(verdict, decided=heard.reason, step=step, micro=micro)

    def _tell_disagreement(self, verdict: Verdict, *, decided: str, step: int, micro: int) -> None:
        """Records, each time, that the device has decided otherwise than the host does; says so once."""
        facts = {"micro": micro, "decided": decided, "host": verdict.reason, "loss": verdict.loss}
        self._core.event("guard_disagrees", facts, step=step)
        self._core.words.disagreement(
            verdict,
            decided=decided,
            where=f"micro-batch {micro} of step {step}",
            instead='GuardConfig(decide="host")',
        )


def _own_figures(micro_batch: RowLosses, *, extra: torch.Tensor | None, beyond: torch.Tensor | None) -> torch.Tensor:
    """(4,) loss sum, tokens, further terms, what is beyond the tokens' losses: copies, on the device of the loss."""
    device = micro_batch.loss_sum.device
    # Token counts are exact in float64; mps has no such type.
    wide = torch.float32 if device.type == "mps" else torch.float64
    nothing = torch.zeros((), device=device)
    further = [nothing if figure is None else figure for figure in (extra, beyond)]
    figures = [micro_batch.loss_sum, micro_batch.num_tokens, *further]
    return torch.stack([figure.detach().to(device, wide) for figure in figures])
