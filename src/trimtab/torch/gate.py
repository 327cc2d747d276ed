"""`Gate`: acts on verdicts, in a loop of one's own and in a trainer alike.

Enters: the reduced losses of a micro-batch, then the norms of a window's gradients. Leaves: a decision, gradients that
are masked by it, an optimizer whose next step is vetoed or not, and what was recorded of it. The verbs, in this order:

    take -> bind                          once a micro-batch, between forward and backward
    take_unjudged                         instead of it, after one whose loss goes by unseen
    close_window -> judge_step -> end     once a window, after its last backward and around the optimizer's step

Without a guard nothing here waits for a CUDA device. With one that decides on the host, `take` waits once a micro-batch
and `judge_step` once a window; with one that decides on the device, neither does once the first micro-batch is through.
Among several ranks `take` meets the others; `take` says how.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from trimtab.errors import GuardLockupError
from trimtab.notices import warn
from trimtab.run import RunCore
from trimtab.torch.alike import AlikeRanks
from trimtab.torch.decision import Decision
from trimtab.torch.gradients import GradientNorms
from trimtab.torch.judge import Judge
from trimtab.torch.late import LateFigures
from trimtab.torch.losses import RowLosses, leading_row
from trimtab.torch.lr import was_rebased
from trimtab.torch.mask import GradientMask
from trimtab.torch.outcome import StepOutcome
from trimtab.torch.ranks import Ranks
from trimtab.torch.schedule import current_lr
from trimtab.torch.settings import refuse_uneven_inputs
from trimtab.torch.statistics import RunningStatistics
from trimtab.torch.step_verdict import StepVerdict, judged_window
from trimtab.torch.transfer import to_host, to_host_together
from trimtab.torch.veto import StepVeto
from trimtab.values import STEP_REASONS


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
        self._alike = AlikeRanks(core, ranks=self.ranks)
        self._guarding: _Guarding | None = None
        self._veto: StepVeto | None = None
        if optimizer is not None:
            core.continuity.next_lr = partial(current_lr, optimizer)
            core.continuity.was_rebased = partial(was_rebased, optimizer)
        if core.guard is not None:
            assert model is not None, "a guard comes with a model"
            self._guarding = _Guarding(
                judge=Judge(core, ranks=self.ranks, late=self._late),
                # No method of the gate: a hook on a parameter would hold it, and so would whatever holds the model.
                mask=GradientMask(model, parameters=partial(_all_of, model, optimizer), alone=self.ranks.alone),
                statistics=RunningStatistics(model),
            )
            # A gate that is thrown away, as by a loop that was interrupted, leaves a model as it was.
            weakref.finalize(self, self._guarding.mask.remove)
            weakref.finalize(self, self._guarding.statistics.remove)

    @property
    def on_device(self) -> bool:
        """Whether decisions are made on the device; False while no micro-batch has settled it."""
        return self._guarding is not None and self._guarding.judge.on_device

    @property
    def may_lack_gradients(self) -> bool:
        """Whether it is known that a loop may have had nothing to call backward on: a skip, or no token."""
        window = self.core.window
        if self._guarding is None or self.on_device:  # there nobody knows, and a backward leaves zeros
            return False
        return window.num_skipped_micros > 0 or not window.may_step

    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, and those that only the optimizer knows."""
        return _all_of(self._model, self._optimizer)

    # Once a micro-batch.

    def take(
        self, micro_batch: RowLosses, *, extra: torch.Tensor | None = None, beyond: torch.Tensor | None = None
    ) -> Decision | None:
        """Judges a micro-batch, where there is a guard, and records it; its loss is yet to be bound.

        With a guard that decides on the host it waits for the loss, and once more to name the row of a skip that is
        said. Among several ranks a guard calls one collective, and before the first micro-batch another, by which
        settings are compared: where the group sums on the CPU (gloo), both block until every rank has called them; on a
        device's own stream (NCCL) the host waits for the one before the first, and for each where the host decides.
        Every rank tells the others at its first micro-batch what it has, through their store and without waiting; one
        with a guard waits there until all have told, 30 s at most.

        Args:
            micro_batch: Its losses, reduced to rows.
            extra: 0-d, what else the loss is made of (or the final loss itself): a micro-batch is also skipped when
                this is not finite.
            beyond: 0-d, what else a host's loss holds, in the unit of its mean over tokens: it is judged too.

        Returns:
            The decision, for `bind`. None without a guard.

        Raises:
            UsageError: If the ranks of the model may run out of data at different steps (`Join`), or have guards with
                different settings, or some have one and some have none.
            GuardLockupError: If the guard is set to raise on a lock-up: about this micro-batch where the host decides,
                else about an earlier one of which the host hears now.
        """
        self._alike.begin()
        rows, sums, tokens = map(to_host, (micro_batch.rows, micro_batch.row_loss_sums, micro_batch.row_num_tokens))
        if self._guarding is None:
            self.core.record_micro_batch(rows, sums, tokens, packed=micro_batch.packed)
            return None
        if not self.ranks.alone:
            refuse_uneven_inputs(self._model)
        judge, mask, statistics = self._guarding
        leader = partial(leading_row, rows, sums, tokens)
        try:
            self.hear()
            decision, reason, keep = judge.judge(micro_batch, extra=extra, beyond=beyond, leading_row=leader)
        except GuardLockupError:
            statistics.keep_or_restore(False)  # its loss is handed to nobody
            raise
        mask.hook()
        statistics.hook()
        statistics.keep_or_restore(decision.keep)
        self.core.record_micro_batch(rows, sums, tokens, reason=reason, keep=keep, packed=micro_batch.packed)
        return decision

    def bind(self, loss: torch.Tensor, decision: Decision | None) -> torch.Tensor:
        """The loss to call backward on: `loss` where it counts, else a zero whose backward leaves zeros.

        Args:
            loss: 0-d.
            decision: What `take` gave for its micro-batch. None: `loss` itself.
        """
        if self._guarding is None or decision is None:
            return loss
        # What is kept without a token leaves its zeros, as it does without a guard.
        return self._guarding.mask.bind(loss, decision.counts, lifts=decision.keep is not True)

    def take_unjudged(self, rows: torch.Tensor, *, packed: bool) -> None:
        """Records a micro-batch whose backward has passed unseen; it is kept.

        Args:
            rows: (N,) its rows, or those of its tokens.
            packed: Whether they are those of its tokens.
        """
        self._alike.begin()
        nothing = torch.zeros(rows.numel(), dtype=torch.int64)
        self.core.record_micro_batch(to_host(rows), nothing, nothing, packed=packed)
        self.core.window.count_unjudged()
        if self._guarding is not None:
            self._guarding.statistics.keep_or_restore(True)

    # Once a window.

    def close_window(self, *, scaler_waits: bool = False) -> bool:
        """Ends the masking of a window's gradients: what runs backward from here on is none of its micro-batches.

        Args:
            scaler_waits: Whether a gradient scaler is yet to look at them: it wants to have seen something, so the
                zeros of a window that is empty stay for it, and go with the veto.

        Returns:
            Whether it is known that nothing in the window counts, so that its gradients need no measuring. Only a host
            that decides knows that before the step.
        """
        if self._guarding is None:
            return False
        is_empty = not self.on_device and not self.core.window.may_step
        if not (is_empty and scaler_waits):
            self._guarding.mask.lift()
        self._guarding.mask.open()
        self._guarding.statistics.settle()
        return is_empty

    def judge_step(self, norms: GradientNorms | None) -> StepVerdict:
        """Decides whether the optimizer's next step changes anything, and tells the optimizer; belongs before it.

        Waits for the device only where the host decides, and `norms` are there. Without a guard every step may.

        Args:
            norms: Of the gradients before clipping, and of their true size where there is a gradient scaler; None where
                nothing counts, so that they were not measured.
        """
        if self._guarding is None:
            return StepVerdict()
        window = self.core.window
        verdict = judged_window(may_step=window.may_step, has_skips=window.num_skipped_micros > 0, norms=norms)
        self._drop_next(verdict.dropped)
        return verdict

    def release_step(self) -> None:
        """Lets the optimizer's next step be taken, whatever `judge_step` has said of it."""
        if self._veto is not None:
            self._veto.drop_next(False)

    def end(
        self,
        verdict: StepVerdict,
        *,
        loss: torch.Tensor,
        num_tokens: torch.Tensor | int,
        norm: torch.Tensor | float | None,
        clip_at: float | None,
        lr: Any,
        loss_scale: torch.Tensor | float | None = None,
    ) -> StepOutcome:
        """Records the step that just ended, and says why it was none; never waits for what a device decides.

        Args:
            verdict: What `judge_step` gave, after a gradient scaler if there is one.
            loss: What the run reports, 0-d.
            num_tokens: Supervised tokens of the window on this rank, 0-d; -1 where not all of them are known.
            norm: Of the gradients before clipping; None where it was not measured.
            clip_at: The norm to which they were clipped; None without clipping.
            lr: Learning rate of the first parameter group; a tensor must be a copy, for schedulers change it in place.
            loss_scale: The scaler's scale before the step; None without one.

        Returns:
            The same, lazily.

        Raises:
            UsageError: If the ranks watch routers by different settings; on all of them, at the end of the same step.
        """
        self._alike.before_report()
        core, window, norms = self.core, self.core.window, verdict.blamed
        facts = to_host_together(
            {
                "reason": verdict.code,
                "loss": loss,
                "num_tokens": num_tokens,
                "grad_norm": norm,
                "lr": lr,
                "clipped": None if norm is None or clip_at is None else norm > clip_at,
                "loss_scale": loss_scale,
                "num_skipped_micros": window.num_skipped_micros,
                "num_skipped_tokens": window.num_own_skipped_tokens,
                "judged_norm": norms.total if norms is not None else None,
                "first_nonfinite": norms.first_nonfinite if norms is not None else None,
            }
        )
        judged_norm, first_nonfinite = facts.pop("judged_norm"), facts.pop("first_nonfinite")
        measured = norms.parameters if norms is not None else ()
        tell = partial(self._tell_step, core.step, facts["reason"], judged_norm, first_nonfinite, measured)
        if isinstance(verdict.code, int):
            tell()
        elif self._guarding is not None:  # a device knows it, or a gradient scaler
            self._late.add(facts["reason"], tell)
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

    def leave(self, *, waits: bool) -> None:
        """Hears what there is to hear of what is being left: a lock-up in it is said, and not raised.

        Args:
            waits: Whether to wait for what has not arrived.
        """
        while True:
            try:
                self._late.drain() if waits else self._late.poll()
            except GuardLockupError as error:  # what came after it is yet to be heard
                warn("guard", str(error))
                continue
            return

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `RunCore.state_dict` was taken, on host and device; waits for the device.

        Raises:
            UsageError: As `RunCore.load_state_dict`.
        """
        self.core.refuse_if_begun()  # what is refused leaves a lock-up to be raised that nobody has heard of
        self.core.check_state(state)
        self.leave(waits=True)
        self.core.load_state_dict(state)
        if self._guarding is not None:
            self._guarding.judge.load()

    def remove(self) -> None:
        """Takes all hooks off model and optimizer. A gate that is used again puts them on again."""
        if self._guarding is not None:
            self._guarding.mask.remove()
            self._guarding.statistics.remove()
        if self._veto is not None:
            self._veto.remove()
            self._veto = None
        self._alike.end()

    # Within.

    def _drop_next(self, dropped: bool | torch.Tensor) -> None:  # noqa: FBT001 - a verdict
        if self._optimizer is None:
            return
        if self._veto is None:
            self._veto = StepVeto(self._optimizer)
            weakref.finalize(self, self._veto.remove)
        self._veto.drop_next(dropped)

    def _tell_step(
        self,
        step: int,
        code: Any,
        norm: Any,
        first_nonfinite: Any,
        parameters: Sequence[nn.Parameter],
        _: list[float] | None = None,
    ) -> None:
        """Says what was decided about a step, by numbers that have arrived."""
        reason = STEP_REASONS[int(code)]
        if reason == "no_tokens":
            self.core.words.no_tokens(step)
        elif reason == "nonfinite_norm":
            place = int(first_nonfinite)
            name = self._name(parameters[place]) if place >= 0 else None
            self.core.event("nonfinite_norm", {"parameter": name, "grad_norm": float(norm)}, step=step)
            self.core.words.nonfinite_norm(step, norm=float(norm), parameter=name)

    def _name(self, parameter: nn.Parameter) -> str:
        """What a parameter is called that was measured."""
        assert self._model is not None, "a guard comes with a model"
        names = (name for name, of_model in self._model.named_parameters() if of_model is parameter)
        return next(names, f"one of shape {tuple(parameter.shape)} that only the optimizer knows")


def _all_of(model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> list[nn.Parameter]:
    parameters = list(model.parameters()) if model is not None else []
    if optimizer is None:
        return parameters
    known = set(map(id, parameters))
    in_groups = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return parameters + [parameter for parameter in in_groups if id(parameter) not in known]
