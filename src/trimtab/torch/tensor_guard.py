"""`TensorGuard`: what `loss = guard(loss)` does, tensor code from the loss to the gradient and the optimizer's step.

Enters: the loss of a micro-batch, a 0-d tensor. Leaves: the loss to call backward on; gradients of zeros where it was
skipped; steps that do not happen where nothing was kept. Invariants: a call never waits for the device, and within
`torch.compile` it is tensor code only; every rank decides alike, from one sum; the host's guard, which hears of it
late, decides the same once more, and its words, counts and state are the ones that the user sees.

    guard(loss) -> [figures -> sum over ranks -> rule -> mask] -> backward -> optimizer.step() -> [drop, hear, open]

On mps, which has no float64, the same code runs on the CPU, and the call waits for the figures.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab.errors import GuardLockupError, UsageError
from trimtab.guard import LossGuard, PerTokenLossGuard
from trimtab.notices import warn_once
from trimtab.torch.decided import SIZE, Decided, DecidedMicro, unheard
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.guarded_steps import GuardedSteps
from trimtab.torch.late import LateFigures
from trimtab.torch.mask import GradientMask
from trimtab.torch.ranks import Ranks
from trimtab.torch.statistics import RunningStatistics
from trimtab.torch.transfer import to_host
from trimtab.values import VERDICT_REASONS


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
        self._guard = weakref.ref(guard)
        self._model = model
        self._process_group = process_group
        self._ranks = Ranks.of(process_group)
        self._mask = GradientMask(model, parameters=model.parameters)
        self._mask.hook()
        self._statistics = RunningStatistics(model)
        self._steps = GuardedSteps(model)
        self._late = LateFigures()
        self._lockup: GuardLockupError | None = None
        self._place_on(self._device_of_model())
        watch = register_optimizer_step_pre_hook(_BeforeStep(self))
        weakref.finalize(self, _let_go, watch, self._mask, self._statistics)

    def _place_on(self, device: torch.device) -> None:
        guard = self._present_guard()
        self._device = device
        self._decided = Decided(device=device)
        self._heard = self._num_skips_heard = self._num_calls = 0
        self._rule = DeviceRule(guard.config, device=device)
        self._rule.load(guard)
        self._zero = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def speaks(self) -> bool:
        """Whether this process tells what all of them decided."""
        return self._ranks.rank == 0

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
        _check_loss(loss_sum)
        _check_tokens(num_tokens)
        if not torch.compiler.is_compiling():
            self._before_call()
        loss = loss_sum.detach().to(self._device, torch.float64)
        if isinstance(num_tokens, torch.Tensor):
            tokens = num_tokens.detach().to(self._device, torch.float64)
        else:
            tokens = torch.full((), num_tokens, dtype=torch.float64, device=self._device)
        is_finite, has_tokens = torch.isfinite(loss), tokens > 0
        # Without tokens there is no loss, whatever stands there, and 0 / 0 is nobody's fault.
        local = [torch.where(is_finite & has_tokens, loss, self._zero), tokens, (has_tokens & ~is_finite).double()]
        figures = self._ranks.summed(torch.stack(local))
        ruling = self._rule.decide(figures[0], figures[1], figures[2])
        self._decided.add(figures, keep=ruling.keep, reason=ruling.reason)
        counts = ruling.keep & has_tokens
        self._mask.set(counts)
        if not torch.compiler.is_compiling():
            self._statistics.keep_or_restore(counts)
        return self._mask.kept(loss_sum)

    def _before_call(self) -> None:
        """What needs no compiled graph: who the ranks are, where the state is, hooks, and what has arrived."""
        if self._ranks.alone:
            self._ranks = Ranks.of(self._process_group)
        device = self._device_of_model()
        if device != self._device:
            self.settle()
            self._place_on(device)
        self._mask.hook()
        self._num_calls += 1
        if self._num_calls % (SIZE // 2) == 0:
            self._late.add(to_host(self._decided.newest()), self._hear)
        self._poll()

    # Once a step of an optimizer that holds parameters of the model.

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the step that comes if it must be, sends for what was decided, and opens the mask; does not wait.

        Raises:
            GuardLockupError: If the host has just heard that the guard skips for ever, and is set to raise.
        """
        if not self._steps.holds(optimizer):
            return
        self._statistics.settle()
        facts, tell = self._steps.before_step(optimizer, counts=self._decided.counts)
        self._mask.set(True)  # a backward that nobody judged is none of the guard's business
        self._late.add(to_host(self._decided.newest()), self._hear)
        if self.speaks:
            self._late.add(to_host(facts), tell)
        self._poll()

    # Late.

    def settle(self) -> None:
        """Lets the guard judge all that was decided and that it has not heard of yet; waits for the device.

        Raises:
            GuardLockupError: As a call does.
        """
        self._late.drain()
        self._hear(self._decided.newest().tolist())
        self._raise_lockup()

    def load(self, guard: LossGuard | PerTokenLossGuard) -> None:
        """Goes on from where the guard stands, which has heard of everything; waits for the device."""
        self._rule.load(guard)

    def _poll(self) -> None:
        self._late.poll()
        self._raise_lockup()

    def _raise_lockup(self) -> None:
        error, self._lockup = self._lockup, None
        if error is not None:
            raise error

    def _hear(self, values: list[float]) -> None:
        guard = self._present_guard()
        micros = unheard(values, heard=self._heard)
        if not micros:
            return
        num_lost = micros[0].place - self._heard - 1
        if num_lost:
            self._take_over_history(num_lost)
            return
        self._heard = micros[-1].place
        for micro in micros:
            loss_sum = math.nan if micro.num_nonfinite else micro.loss_sum
            reason = VERDICT_REASONS[micro.reason]
            self._num_skips_heard += reason in ("nonfinite", "spike")
            try:
                verdict = guard.hear(loss_sum, micro.num_tokens)
            except GuardLockupError as error:
                # The device has skipped this one, and the host remembers nothing of it: both go on alike.
                self._lockup = self._lockup or error
                continue
            if verdict.reason != reason:
                self._say_differing(micro, expected=verdict.reason)

    def _take_over_history(self, num_lost: int) -> None:
        """Where the device has overwritten what the host had not heard of, its history is the guard's; waits for it."""
        guard = self._present_guard()
        num_judged, _, num_skipped = self._decided.counts.tolist()
        num_new, num_new_skips = num_judged - self._heard, num_skipped - self._num_skips_heard
        self._heard, self._num_skips_heard = num_judged, num_skipped
        state = guard.state_dict()
        state["rule"]["window"]["values"], losses, num_finite = self._rule.history()
        state["streak"] = {"num_finite": num_finite, "num_nonfinite": 0, "losses": losses}
        state["num_judged"] += num_new
        state["num_skipped"] += num_new_skips
        guard.load_state_dict(state)
        warn_once(
            "guard",
            f"Guard: more than {SIZE} micro-batches were decided within a compiled graph between two steps of an "
            f"optimizer. The history goes on as the device has it; {num_lost} verdicts are counted and nothing else is "
            "said of them.",
            cause="lost verdicts",
        )

    def _say_differing(self, micro: DecidedMicro, *, expected: str) -> None:
        warn_once(
            "guard",
            f"Guard: micro-batch {micro.place} (loss sum {micro.loss_sum}, {micro.num_tokens} tokens) was decided on "
            f"{self._device} as {VERDICT_REASONS[micro.reason]}, and the host's rule says {expected}. What the device "
            "decided was done. This is an error in Trimtab: please report it with these numbers.",
            cause="differing verdicts",
        )

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


class _BeforeStep:
    """The hook for all optimizers; holds the guard weakly, as nothing else holds it that would outlive it."""

    def __init__(self, tensor_guard: TensorGuard) -> None:
        self._tensor_guard = weakref.ref(tensor_guard)

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        tensor_guard = self._tensor_guard()
        if tensor_guard is not None:
            tensor_guard.before_step(optimizer)


def _let_go(watch: Any, mask: GradientMask, statistics: RunningStatistics) -> None:
    watch.remove()
    mask.remove()
    statistics.remove()


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or not loss.is_floating_point():
        found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(
            f"guard(loss) takes one loss, a 0-d tensor of a float dtype, found {found}: reduce it first "
            "(.mean(), .sum()); for a plain number there is guard.check(...)."
        )


def _check_tokens(num_tokens: Any) -> None:
    if isinstance(num_tokens, torch.Tensor):
        if num_tokens.dim() == 0 and not num_tokens.is_floating_point() and num_tokens.dtype != torch.bool:
            return
        found = f"{num_tokens.dtype} of shape {tuple(num_tokens.shape)}"
    elif isinstance(num_tokens, int) and not isinstance(num_tokens, bool) and num_tokens >= 0:
        return
    else:
        found = f"{num_tokens!r:.80}"
    raise UsageError(
        f"num_tokens is {found}: expected a whole number of 0 or more, or a 0-d integer tensor, for example mask.sum()."
    )
