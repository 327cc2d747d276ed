"""`TensorGuard`: what `loss = guard(loss)` does, tensor code from the loss to the gradient and the optimizer's step.

Enters: the loss of a micro-batch, a 0-d tensor. Leaves: the loss to call backward on; gradients of zeros where it was
skipped; steps that do not happen where nothing was kept. Invariants: a call never waits for the device, and within
`torch.compile` it is tensor code only; every rank decides alike, from one sum; the host's guard, which hears of it
late, decides the same once more, and its words, counts and state are the ones that the user sees.

    guard(loss) -> [figures -> sum over ranks -> rule -> mask] -> backward -> optimizer.step() -> [drop, hear, open]

On mps, which has no float64, the same code runs on the CPU, and the call waits for the figures.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab.errors import UsageError
from trimtab.guard import LossGuard, PerTokenLossGuard
from trimtab.guard.acting import Acting
from trimtab.guard.config import GuardConfig
from trimtab.guard.history import History
from trimtab.guard.words import GuardWords
from trimtab.notices import warn_setting
from trimtab.torch.beside import ParametersBeside, parameters_of
from trimtab.torch.decided import Decided
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.figures import Shown, counts_here, is_finite_number
from trimtab.torch.guarded_steps import GuardedSteps
from trimtab.torch.hearing import Hearing
from trimtab.torch.late import LateFigures
from trimtab.torch.mask import GradientMask
from trimtab.torch.ranks import Ranks
from trimtab.torch.scalars import check_loss, check_tokens
from trimtab.torch.settings import refuse_without_values
from trimtab.torch.statistics import RunningStatistics
from trimtab.torch.transfer import to_host


class TensorGuard:
    """Acts on one model for one guard, which alone holds it: when the guard is gone, so is every hook."""

    def __init__(self, guard: LossGuard | PerTokenLossGuard, *, model: nn.Module, process_group: Any = None) -> None:
        """Hooks the model's parameters, and the steps of every optimizer that holds one of them.

        Args:
            guard: The host guard that hears of what is decided; it must be on.
            model: The model, also wrapped, sharded or compiled.
            process_group: The ranks that see different rows. None: the default group where torch.distributed is
                initialised, else this process alone.

        Raises:
            UsageError: If `model` is no module, or one that cannot be guarded.
        """
        if not isinstance(model, nn.Module):
            raise UsageError(f"model= must be the torch.nn.Module whose gradients are guarded, found {model!r:.80}.")
        refuse_without_values(model)
        _say_what_has_no_effect(guard.config)
        self._guard = weakref.ref(guard)
        self._model = model
        self._process_group = process_group
        self._words = GuardWords(rank=0)
        self._is_agreed = self._is_looked_behind = False
        self._meet()
        self._beside = ParametersBeside(model)
        self._steps = GuardedSteps(model, beside=self._beside, words=self._words)
        self._optimizers_seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._mask = GradientMask(model, parameters=partial(_with_beside, model, self._beside))
        self._mask.hook()
        self._statistics = RunningStatistics(model)
        self._device = self._device_of_model()
        self._rule = self._rule_on(self._device)
        self._decided = Decided(device=self._device)
        self._begun = torch.full_like(self._decided.counts, -1)
        self._late = LateFigures()
        self._hearing = Hearing(self._guard, rule=self._rule, decided=self._decided, late=self._late, words=self._words)
        watch = register_optimizer_step_pre_hook(_BeforeStep(self))
        weakref.finalize(self, _let_go, watch, self._mask, self._statistics)
        _ALL.add(self)

    def _meet(self) -> None:
        """Finds out who the ranks are, and so who speaks."""
        self._ranks = Ranks.of(self._process_group)
        self._words.rank = self._ranks.rank
        self._present_guard().quiet = self._ranks.rank > 0

    def _agree(self) -> None:
        """Refuses ranks whose guards are set or loaded differently, with the first call's one collective more."""
        guard = self._present_guard()
        self.settle()  # what a compiled graph has decided before this, each rank has heard as much of as it has
        self._ranks.refuse_unlike({"guard": type(guard).__name__, **guard.config.saved, "history": guard.history.told})
        self._is_agreed = True

    def _move_to(self, device: torch.device) -> None:
        """Goes on where the model is now, from what was decided where it was; waits for that device."""
        self._hearing.settle()
        self._device = device
        self._rule = self._rule_on(device)
        # The counts go on: the windows of optimizers began by them.
        self._decided = Decided(device=device, counts=self._decided.counts)
        self._hearing.go_on(rule=self._rule, decided=self._decided)

    def _rule_on(self, device: torch.device) -> DeviceRule:
        guard = self._present_guard()
        rule = DeviceRule(guard.config, device=device)
        rule.load(guard.history)
        return rule

    # Once a micro-batch.

    def __call__(self, loss_sum: torch.Tensor, num_tokens: torch.Tensor | int) -> torch.Tensor:
        """Judges one micro-batch and gives the loss to call backward on; never waits, but for mps.

        Args:
            loss_sum: 0-d, any float dtype, unscaled.
            num_tokens: Its supervised tokens, a number or a 0-d integer tensor; 1 for a mean loss.

        Returns:
            0-d, same dtype and device: `loss_sum` where it counts, else a zero on the same graph.

        Raises:
            UsageError: If an argument is no such tensor or number.
            GuardLockupError: If the host has just heard that the guard skips for ever, and is set to raise.
        """
        check_loss(loss_sum, where="guard(loss)", instead="for a plain number there is guard.check(...)")
        check_tokens(num_tokens)
        if not torch.compiler.is_compiling():
            self._before_call(loss_sum)
        loss = loss_sum.detach().to(self._device, torch.float64)
        if isinstance(num_tokens, torch.Tensor):
            tokens = num_tokens.detach().to(self._device, torch.float64)
        else:
            tokens = torch.full((), num_tokens, dtype=torch.float64, device=self._device)
        figures = self._ranks.summed(torch.stack(Shown.of(loss, tokens)))
        ruling = self._rule.decide(figures[0], figures[1], figures[2])
        self._decided.add(figures, keep=ruling.keep, reason=ruling.reason)
        has_tokens = tokens > 0
        counts = counts_here(ruling.keep, has_tokens=has_tokens, is_finite=is_finite_number(loss), has_terms=False)
        if torch.compiler.is_compiling():
            self._mask.set(counts)
            return self._mask.kept(loss_sum)
        # By the verdict: a batch without tokens is kept, and was seen.
        self._statistics.keep_or_restore(ruling.keep)
        return self._mask.bind(loss_sum, counts)

    def _before_call(self, loss_sum: torch.Tensor) -> None:
        """What needs no compiled graph: who the ranks are, where the state is, hooks, and what has arrived."""
        if self._ranks.alone:
            self._meet()
        if not (self._is_agreed or self._ranks.alone):
            self._agree()
        device = self._device_of_model()
        if device != self._device:
            self._move_to(device)
        self._mask.hook()
        if not self._is_looked_behind and loss_sum.requires_grad:
            # Before its first step no optimizer is known: what it has beside the model shows in the loss alone.
            self._is_looked_behind = True
            self._beside.look_behind(loss_sum, is_on=self._mask.is_on)
            self._mask.hook()
        if self._steps.is_cleared():
            self._begun = self._decided.counts.clone()
        self._hearing.count()
        self._hearing.poll()

    # Once a step of an optimizer that holds parameters of the model.

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the step that comes if it must be, sends for what was decided, and opens the mask; does not wait.

        Raises:
            GuardLockupError: If the host has just heard that the guard skips for ever, and is set to raise.
        """
        if optimizer not in self._optimizers_seen and any(p.grad is not None for p in parameters_of(optimizer)):
            self._optimizers_seen.add(optimizer)
            self._is_looked_behind = False  # what it steps may be new to the loss as well
        if not self._steps.holds(optimizer):
            return
        self._statistics.settle()
        if not self._steps.knows(optimizer):
            self._words.outside_model(self._beside.num_missed(optimizer, is_on=self._mask.is_on))
            self._beside.meet(optimizer)
        counts = self._decided.counts
        facts, tell = self._steps.before_step(
            optimizer, counts=counts, begun=self._begun.to(counts.device), is_shared=self._shares(optimizer)
        )
        self._mask.open()  # what a compiled graph has decided ends here
        if not self._hearing.num_counted:
            self._mask.hook()  # a call within a compiled graph can not
        self._hearing.send_for()
        self._late.add(to_host(facts), tell)
        self._hearing.poll()

    def _shares(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether another guard acts on its steps too."""
        return any(other is not self and other._steps.holds(optimizer) for other in list(_ALL))

    # For the guard, on the host.

    def settle(self) -> None:
        """Lets the guard judge all that was decided and that it has not heard of yet; waits for the device.

        Raises:
            GuardLockupError: As a call does.
        """
        self._hearing.settle()

    def load(self, history: History) -> None:
        """Goes on from the guard's history; waits for the device. Among ranks the next call compares what each has."""
        self._rule.load(history)
        self._is_agreed = False

    # Within.

    def _present_guard(self) -> LossGuard | PerTokenLossGuard:
        guard = self._guard()
        assert guard is not None, "the guard alone holds this"
        return guard

    def _device_of_model(self) -> torch.device:
        parameter = next(self._model.parameters(), None)
        if parameter is None or parameter.device.type == "mps":
            return torch.device("cpu")
        return parameter.device


_ALL: weakref.WeakSet[TensorGuard] = weakref.WeakSet()
"""Those of this process: where two act on one optimizer, what the one skips is not all that there is."""

if TYPE_CHECKING:
    _is_acting: type[Acting] = TensorGuard  # the guard loads it by its name: checked here


class _BeforeStep:
    """The hook for all optimizers; holds the guard weakly, as nothing else holds it that would outlive it."""

    def __init__(self, tensor_guard: TensorGuard) -> None:
        self._tensor_guard = weakref.ref(tensor_guard)

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        tensor_guard = self._tensor_guard()
        if tensor_guard is not None:
            tensor_guard.before_step(optimizer)


def _with_beside(model: nn.Module, beside: ParametersBeside) -> list[nn.Parameter]:
    return [*model.parameters(), *beside.now()]


def _let_go(watch: Any, mask: GradientMask, statistics: RunningStatistics) -> None:
    watch.remove()
    mask.remove()
    statistics.remove()


def _say_what_has_no_effect(config: GuardConfig) -> None:
    if config.decide == "host":
        warn_setting(
            'decide="host" has no effect on guard(loss), whose verdict is tensor code where the model is, so that the '
            "call never waits; leave it out, or use trimtab.Run, which knows it."
        )
    if config.removes:
        warn_setting(
            'skipped_tokens="removed" has no effect on guard(loss), which scales no gradient: skipped tokens stay in '
            "whatever your loop divides by; leave it out, or use trimtab.Run, which knows it."
        )
