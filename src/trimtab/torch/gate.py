"""`Gate`: acts on verdicts, in a loop of one's own and in a trainer alike.

Enters: the reduced losses of a micro-batch, then the norms of a window's gradients. Leaves: a decision, gradients that
are masked by it, an optimizer whose next step is vetoed or not, and what was recorded of it. The verbs, in this order:

    take                   once a micro-batch, between forward and backward
    close_window           once a window, after its last backward
    judge_step -> end      once a window, around the optimizer's step

Without a guard nothing here waits for the device. With one that decides on the host, `take` waits once a micro-batch
and `judge_step` once a window; with one that decides on the device, neither does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from trimtab.run import STEP_CODE, RunCore
from trimtab.torch.decision import Decision
from trimtab.torch.gradients import GradientNorms
from trimtab.torch.judge import Judge
from trimtab.torch.late import LateFigures
from trimtab.torch.losses import RowLosses, leading_row
from trimtab.torch.mask import GradientMask
from trimtab.torch.outcome import StepOutcome
from trimtab.torch.ranks import Ranks
from trimtab.torch.statistics import RunningStatistics
from trimtab.torch.transfer import to_host, to_host_together
from trimtab.torch.veto import StepVeto
from trimtab.values import STEP_REASONS, StepReason


class _Guarding(NamedTuple):
    """What there is where there is a guard."""

    judge: Judge
    mask: GradientMask
    statistics: RunningStatistics


class Gate:
    """What stands between the losses of a run and its weights.

    Attributes:
        core: The run whose guard decides and whose recorder writes.
        ranks: The processes whose guards decide together.
    """

    def __init__(
        self,
        core: RunCore,
        *,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Guards the parameters of `model`, and those that only `optimizer` knows.

        Args:
            core: The run.
            model: The model, or what it is wrapped in; needed where there is a guard.
            optimizer: The optimizer whose steps may be dropped.
            ranks: The processes that train together; None: those of the default process group.
        """
        self.core = core
        self.ranks = ranks if ranks is not None else Ranks.of()
        self._model = model
        self._optimizer = optimizer
        self._late = LateFigures()
        self._guarding: _Guarding | None = None
        self._veto: StepVeto | None = None
        self._first_nonfinite: torch.Tensor | None = None
        if core.guard is not None:
            assert model is not None, "a guard comes with a model"
            self._guarding = _Guarding(
                judge=Judge(core, ranks=self.ranks, late=self._late),
                mask=GradientMask(model, parameters=self.parameters),
                statistics=RunningStatistics(model),
            )

    @property
    def on_device(self) -> bool:
        """Whether decisions are made on the device; False while no micro-batch has settled it."""
        return self._guarding is not None and self._guarding.judge.on_device

    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, and those that only the optimizer knows."""
        parameters = list(self._model.parameters()) if self._model is not None else []
        if self._optimizer is None:
            return parameters
        known = set(map(id, parameters))
        in_groups = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        return parameters + [parameter for parameter in in_groups if id(parameter) not in known]

    # Once a micro-batch.

    def take(
        self, micro_batch: RowLosses, *, extra: torch.Tensor | None = None, beyond: torch.Tensor | None = None
    ) -> Decision | None:
        """Judges a micro-batch, where there is a guard, masks what its backward will leave, and records it.

        With a guard among several ranks it calls one collective, and blocks until every rank has called it.

        Args:
            micro_batch: Its losses, reduced to rows.
            extra: 0-d, what else the loss is made of (or the final loss itself): a micro-batch is also skipped when
                this is not finite.
            beyond: 0-d, what else a host's loss holds, in the unit of its mean over tokens: it is judged too.

        Returns:
            The decision; its `kept` gives the loss to call backward on. None without a guard.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up: about this micro-batch where the host decides,
                else about an earlier one of which the host hears now.
        """
        self.hear()
        rows, sums, tokens = map(to_host, (micro_batch.rows, micro_batch.row_loss_sums, micro_batch.row_num_tokens))
        if self._guarding is None:
            self.core.record_micro_batch(rows, sums, tokens, packed=micro_batch.packed)
            return None
        judge, mask, statistics = self._guarding
        mask.lift()
        leader = partial(leading_row, rows, sums, tokens)
        decision, reason, keep = judge.judge(micro_batch, extra=extra, beyond=beyond, leading_row=leader)
        mask.hook()
        mask.set(decision.counts)
        if decision.keep is True:
            mask.lift()  # what is kept without a token leaves its zeros, as it does without a guard
        statistics.keep_or_restore(decision.keep)
        self.core.record_micro_batch(rows, sums, tokens, reason=reason, keep=keep, packed=micro_batch.packed)
        return decision

    # Once a window.

    def close_window(self) -> None:
        """Ends the masking of a window's gradients: what runs backward from here on is none of its micro-batches."""
        if self._guarding is not None:
            self._guarding.mask.lift()
            self._guarding.mask.set(True)
            self._guarding.statistics.settle()

    def drop_reason(self) -> StepReason | None:
        """Why the window must not be stepped, by what its micro-batches were; None if it may, or if nobody knows yet.

        Only a host that decides knows before the step; it need not measure gradients then.
        """
        return None if self.on_device else self.core.drop_reason()

    def judge_step(self, norms: GradientNorms | None) -> StepReason | torch.Tensor:
        """Decides whether the optimizer's next step changes anything, and tells the optimizer; belongs before it.

        Waits for the device only where the host decides, and `norms` are there. Without a guard every step may.

        Args:
            norms: Of the gradients before clipping; None where they are not judged: a gradient scaler looks for itself.

        Returns:
            The reason, "stepped" if it may; under device decision a 0-d int64 tensor, the index into `STEP_REASONS`.

        Raises:
            GuardLockupError: As `take`, about an earlier micro-batch.
        """
        self.hear()
        if self._guarding is None:
            return "stepped"
        if self.on_device:
            code = self._step_code(norms)
            self._drop_next(code != STEP_CODE["stepped"])
            return code
        reason = self.core.drop_reason()
        if reason is None and norms is not None:
            total = float(norms.total)
            if not math.isfinite(total):
                reason = "nonfinite_norm"
                self._tell_nonfinite_norm(self.core.step, total, int(norms.first_nonfinite))
        self._drop_next(reason is not None)
        return "stepped" if reason is None else reason

    def end(
        self,
        reason: StepReason | torch.Tensor,
        *,
        loss: torch.Tensor,
        num_tokens: torch.Tensor,
        norm: torch.Tensor | float | None,
        clip_at: float | None,
        lr: Any,
        loss_scale: torch.Tensor | float | None = None,
    ) -> StepOutcome:
        """Records the step that just ended; never waits.

        Args:
            reason: What became of it, or its 0-d index into `STEP_REASONS`.
            loss: What the run reports, 0-d.
            num_tokens: Supervised tokens of the window on this rank, 0-d.
            norm: Of the gradients before clipping; None where it was not measured.
            clip_at: The norm to which they were clipped; None without clipping.
            lr: Learning rate of the first parameter group; a tensor must be a copy, for schedulers change it in place.
            loss_scale: The scaler's scale before the step; None without one.

        Returns:
            The same, lazily.
        """
        core, window = self.core, self.core.window
        facts = to_host_together(
            {
                "reason": STEP_CODE[reason] if isinstance(reason, str) else reason,
                "loss": loss,
                "num_tokens": num_tokens,
                "grad_norm": norm,
                "lr": lr,
                "clipped": None if norm is None or clip_at is None else norm > clip_at,
                "loss_scale": loss_scale,
                "num_skipped_micros": window.num_skipped_micros,
                "num_skipped_tokens": window.num_own_skipped_tokens,
                "first_nonfinite": self._first_nonfinite,
            }
        )
        first_nonfinite = facts.pop("first_nonfinite")
        if self.on_device:
            hear = partial(self._hear_step, core.step, facts["reason"], facts["grad_norm"], first_nonfinite)
            self._late.add(facts["reason"], hear)
        self._first_nonfinite = None
        core.end_step(**facts)
        return StepOutcome(facts)

    # Beside the windows.

    def hear(self) -> None:
        """Lets the guard judge what a device has decided and the host can hear of by now; never waits.

        Raises:
            GuardLockupError: As `take`.
        """
        self._late.poll()

    def drain(self) -> None:
        """Lets the guard judge all that a device has decided; waits for it.

        Raises:
            GuardLockupError: As `take`.
        """
        self._late.drain()

    def remove(self) -> None:
        """Takes all hooks off model and optimizer. A gate that is used again puts them on again."""
        if self._guarding is not None:
            self._guarding.mask.remove()
            self._guarding.statistics.remove()
        if self._veto is not None:
            self._veto.remove()
            self._veto = None

    # Within.

    def _step_code(self, norms: GradientNorms | None) -> torch.Tensor:
        """0-d int64, index into `STEP_REASONS`: what a window on the device is to become."""
        window = self.core.window
        code = torch.where(window.num_skipped_micros > 0, STEP_CODE["all_skipped"], STEP_CODE["no_tokens"])
        may_step = window.num_kept_tokens > 0
        code = torch.where(may_step, STEP_CODE["stepped"], code)
        if norms is None:
            return code
        self._first_nonfinite = norms.first_nonfinite
        is_bad = may_step & ~torch.isfinite(norms.total).to(code.device, non_blocking=True)
        return torch.where(is_bad, STEP_CODE["nonfinite_norm"], code)

    def _drop_next(self, dropped: bool | torch.Tensor) -> None:  # noqa: FBT001 - a verdict
        if self._optimizer is None:
            return
        if self._veto is None:
            self._veto = StepVeto(self._optimizer)
        self._veto.drop_next(dropped)

    def _hear_step(self, step: int, reason: Any, norm: Any, first_nonfinite: Any, _: list[float]) -> None:
        """Says what a device decided about a step, by numbers that have arrived."""
        heard = STEP_REASONS[int(reason)]
        if heard == "no_tokens":
            self.core.words.no_tokens(step)
        elif heard == "nonfinite_norm":
            self._tell_nonfinite_norm(step, float(norm), int(first_nonfinite))

    def _tell_nonfinite_norm(self, step: int, norm: float, place: int) -> None:
        self.core.tell_nonfinite_norm(step, norm=norm, parameter=self._name(place))

    def _name(self, place: int) -> str | None:
        """What the parameter at that place of `parameters` is called; None for no place."""
        if place < 0:
            return None
        assert self._model is not None, "a guard comes with a model"
        names = [name for name, _ in self._model.named_parameters()]
        return names[place] if place < len(names) else f"number {place - len(names)} of those only the optimizer knows"


def after_scaler(reason: StepReason | torch.Tensor, *, overflowed: torch.Tensor) -> StepReason | torch.Tensor:
    """The reason of a step that a gradient scaler has taken or not; never waits.

    Args:
        reason: What `judge_step` gave.
        overflowed: 0-d bool, whether the scaler left the step out.
    """
    if isinstance(reason, str):
        if reason != "stepped":  # nothing to step by, so nothing that could overflow
            return reason
        reason = torch.full((), STEP_CODE[reason], device=overflowed.device)
    happened = reason == STEP_CODE["stepped"]
    return torch.where(happened & overflowed.to(reason.device, non_blocking=True), STEP_CODE["scaler_overflow"], reason)
