"""`Judge`: one micro-batch's figures, and the decision about it.

Enters: the reduced losses of a micro-batch, on this rank. Leaves: a `Decision`, alike on every rank, and the guard's
words. Invariants: figures are copies, the caller's loss is never changed; every rank calls the same collectives, one
sum of three numbers a micro-batch, whatever its losses are; host and device decide alike, verdict for verdict.

    on the host      figures -> sum over ranks -> the guard
    on the device    figures -> sum over ranks -> the rule as tensor code     nothing waits
                        ` - - - - - - - - - - - -> the guard, when they have arrived: words, rates, state
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from trimtab.guard.figures import MicroFigures
from trimtab.run import REASON_CODE, RunCore
from trimtab.torch.decision import Decision
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.late import LateFigures
from trimtab.torch.losses import RowLosses
from trimtab.torch.ranks import Ranks
from trimtab.torch.transfer import HostNumber, to_host
from trimtab.values import VERDICT_REASONS

_HOST_DEVICES: Final = ("cpu", "mps")
"""Where the host decides unless told otherwise: reading a loss on the CPU waits for nothing, and mps has no float64."""

_REASON: Final = 7
_KEEP: Final = 8
"""Places in what is copied to the host, behind the three figures of all ranks and the four of this one."""

LeadingRow = Callable[[], int | None]


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
        """Decides about the micro-batch at hand; for the arguments see `Gate.take`.

        Args:
            micro_batch: Its losses.
            extra: 0-d or None.
            beyond: 0-d or None.
            leading_row: Finds the row that leads it, from what is on its way to the host already.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up, and the host decides.
        """
        own = _own_figures(micro_batch, extra=extra, beyond=beyond)
        # Without tokens only a further term has a gradient; that of ignored losses is 0, or NaN where they are.
        has_terms = extra is not None or beyond is not None
        if self._on_device is None:
            self._settle(own.device)
        if self._on_device:
            return self._on_the_device(own, micro_batch.num_tokens, leading_row, has_terms=has_terms)
        return self._on_the_host(own, leading_row, has_terms=has_terms)

    def _settle(self, device: torch.device) -> None:
        guard = self._core.guard
        assert guard is not None, "a judge belongs to a run with a guard"
        decide = guard.config.decide
        # mps decides nothing, also where it is asked to: it has no float64.
        self._on_device = device.type != "mps" and (
            decide == "device" or (decide == "auto" and device.type not in _HOST_DEVICES)
        )
        if self._on_device:
            self._rule = DeviceRule(guard.config, device=device)
            self._rule.load(guard)
            self._last_step = guard.state_dict()["last_step"] or 0

    def _on_the_host(self, own: torch.Tensor, leading_row: LeadingRow, *, has_terms: bool) -> Judgement:
        loss_sum, tokens, aux, beyond = own.tolist()  # one read of the host for all figures
        figures = MicroFigures(loss_sum, int(tokens), aux, beyond)
        own_sum = figures.own_sum
        is_finite = math.isfinite(own_sum)
        if not self._ranks.alone:
            flag = tokens > 0 and not is_finite
            shown = [own_sum if is_finite else 0.0, tokens, float(flag)]
            summed = self._ranks.summed(torch.tensor(shown, dtype=torch.float64, device=own.device))
            figures = figures._replace(together=_together(*summed.tolist()))
        verdict = self._core.judge(figures, leading_row=leading_row)
        counts = verdict.keep and (figures.num_tokens > 0 or (has_terms and is_finite))
        code = REASON_CODE[verdict.reason]
        return Judgement(Decision(verdict.keep, counts, code), reason=code, keep=verdict.keep)

    def _on_the_device(
        self, own: torch.Tensor, num_tokens: torch.Tensor, leading_row: LeadingRow, *, has_terms: bool
    ) -> Judgement:
        core = self._core
        assert self._rule is not None, "made when it was settled who decides"
        if core.step < self._last_step:
            self._rule.reset()  # as the guard will, when it hears of it
        self._last_step = core.step

        loss_sum, tokens, aux, beyond = own.unbind()
        judged = loss_sum + aux * 0.0 + beyond * tokens
        is_finite, has_tokens = torch.isfinite(judged), tokens > 0
        # A sum over ranks with one NaN in it is NaN for all: what is not finite is told by a flag.
        figures = torch.stack([torch.where(is_finite, judged, 0.0), tokens, (has_tokens & ~is_finite).to(tokens.dtype)])
        together = self._ranks.summed(figures)
        ruling = self._rule.decide(*together.unbind())

        counts = ruling.keep & ((has_tokens | is_finite) if has_terms else has_tokens)
        core.window.count(
            skipped=(~ruling.keep).to(torch.int64),
            num_tokens=together[1].to(torch.int64),
            num_own_tokens=num_tokens,
        )
        copy = to_host(
            torch.cat([together, own, torch.stack([ruling.reason.to(own.dtype), ruling.keep.to(own.dtype)])])
        )
        hear = partial(self._hear, step=core.step, micro=core.window.num_micros, leading_row=leading_row)
        self._late.add(copy, hear)
        decision = Decision(ruling.keep, counts, ruling.reason)
        return Judgement(decision, reason=HostNumber(copy, _REASON), keep=HostNumber(copy, _KEEP))

    def _hear(self, numbers: list[float], *, step: int, micro: int, leading_row: LeadingRow) -> None:
        """Lets the guard decide once more, by the same figures."""
        loss_sum, tokens, aux, beyond = numbers[3:7]
        together = None if self._ranks.alone else _together(*numbers[:3])
        figures = MicroFigures(loss_sum, int(tokens), aux, beyond, together)
        verdict = self._core.judge_late(figures, step=step, micro=micro, leading_row=leading_row)
        decided = VERDICT_REASONS[int(numbers[_REASON])]
        if verdict.reason != decided:
            self._core.tell_disagreement(verdict, decided=decided, step=step, micro=micro)


def _together(loss_sum: float, num_tokens: float, num_nonfinite: float) -> tuple[float, int]:
    """The figures of all ranks as a guard takes them: a sum that hides what is not finite is NaN."""
    return math.nan if num_nonfinite else loss_sum, int(num_tokens)


def _own_figures(micro_batch: RowLosses, *, extra: torch.Tensor | None, beyond: torch.Tensor | None) -> torch.Tensor:
    """(4,) loss sum, tokens, further terms, what is beyond the tokens' losses: copies, on the device of the loss."""
    device = micro_batch.loss_sum.device
    # Token counts are exact in float64; mps has no such type.
    wide = torch.float32 if device.type == "mps" else torch.float64
    nothing = torch.zeros((), device=device)
    further = [nothing if figure is None else figure for figure in (extra, beyond)]
    figures = [micro_batch.loss_sum, micro_batch.num_tokens, *further]
    return torch.stack([figure.detach().to(device, wide) for figure in figures])
