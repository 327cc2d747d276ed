"""`StepVeto`: an optimizer step that is called and changes nothing, decided by the host or on the device.

Enters: before a step, whether it must be dropped, as a Python bool or as a 0-d bool tensor that nobody has looked at.
Leaves: an optimizer whose parameters, moments and step counts are, after a dropped step, bit for bit what they were.
Without a flag nothing of the optimizer is touched. Loops and trainers go on calling `optimizer.step()` or
`scaler.step(optimizer)`: the veto sits in the optimizer's own step hooks.

    flag              optimizer                             what the step finds
    False, or none    any                                   what it would have found
    True              any                                   no gradient
    tensor            every group fused, and so the guard   `found_inf`, which the kernel reads on the device
    tensor            any other                             no gradient, after one look of the host at the flag
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from trimtab.errors import UsageError
from trimtab.torch.gradients import drop_gradients

_Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call of `step`."""

_FOUND_INF: Final = "found_inf"
"""The attribute by which a gradient scaler tells a fused optimizer not to step; the veto speaks through the same."""

_speaking: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers whose `found_inf` a veto has set: a second veto on the same one adds to it, and leaves it to the first."""


class StepVeto:
    """Drops steps of one optimizer, those that it is told to."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Hooks the optimizer's step; of a wrapper that has no hooks (accelerate's), that of the one inside.

        Raises:
            UsageError: If neither it nor what it wraps is an optimizer with step hooks.
        """
        self._optimizer, self._handles = self._hooked(optimizer)
        self._dropped: bool | torch.Tensor = False
        self._found_inf: torch.Tensor | None = None
        self._before: dict[str, Any] = {}
        self._without_momentum: list[torch.Tensor] = []

    def drop_next(self, dropped: bool | torch.Tensor) -> None:  # noqa: FBT001 - the one argument, and a verdict
        """Says whether the next step is to be dropped; never waits.

        Holds for one call of the optimizer's step, also where that raises, and replaces what was said before: say it
        in every window, for a gradient scaler that finds an overflow may not call the step at all.

        The gradients of a dropped step are gone when it returns (fused optimizers under a tensor keep them): nothing
        that reads `p.grad` after the step sees them. The step waits for the device, once, if `dropped` is a tensor
        there and the optimizer is not fused in every group or is called with a closure; and in the first step of fused
        SGD with both momentum and dampening. A closure is still called: its gradients are taken away, too.

        Args:
            dropped: A bool, or a 0-d bool tensor on the parameters' device or on the CPU.
        """
        self._dropped = dropped

    def remove(self) -> None:
        """Takes the hooks off; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._fall_silent()

    # The hooks.

    def _hooked(self, optimizer: Any) -> tuple[torch.optim.Optimizer, list[RemovableHandle]]:
        """The outermost optimizer that has step hooks, and the two that it now has of this veto."""
        found = optimizer
        while found is not None:
            try:
                # accelerate's wrapper is an Optimizer that never ran its constructor: it has the methods and no hooks.
                return found, [
                    found.register_step_pre_hook(self._before_step),
                    found.register_step_post_hook(self._after_step),
                ]
            except AttributeError:
                found = getattr(found, "optimizer", None)
        raise UsageError(
            f"optimizer has no step hooks, found {type(optimizer).__name__}: none of its steps could be dropped. Pass "
            "the torch.optim.Optimizer whose step() changes the parameters."
        )

    # A compiled `optimizer.step` must call the two hooks for what they are: traced by torch 2.13, the flag is lost.

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Any) -> _Call | None:
        self._fall_silent()  # a step that raised has left its flag behind
        dropped, self._dropped = _with_scaler(optimizer, self._dropped), False
        if isinstance(dropped, torch.Tensor):
            has_closure = _closure(args, kwargs) is not None  # which is yet to leave its gradients
            if not has_closure and _hears_found_inf(optimizer, dropped) and self._momentum_can_wait(optimizer):
                self._speak(optimizer, dropped)
                return None
            dropped = bool(dropped)
        if not dropped:
            return None
        _drop_all(optimizer)
        return _with_silenced_closure(optimizer, args, kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        del args, kwargs
        if self._found_inf is not None:
            _zero_first_momentum(optimizer, self._without_momentum, found_inf=self._found_inf)
        self._fall_silent()

    # What a gradient scaler would say.

    def _speak(self, optimizer: torch.optim.Optimizer, dropped: torch.Tensor) -> None:
        # Exactly 0 or 1: a kernel takes it off the step count that it has raised by one.
        found_inf = dropped.detach().to(torch.float32)
        said = getattr(optimizer, _FOUND_INF, None)
        if optimizer in _speaking and isinstance(said, torch.Tensor):
            said.copy_(found_inf)
            return
        _speaking.add(optimizer)
        self._before = {_FOUND_INF: said} if hasattr(optimizer, _FOUND_INF) else {}
        self._found_inf = found_inf
        setattr(optimizer, _FOUND_INF, found_inf)

    def _fall_silent(self) -> None:
        """Leaves the attribute as it was: a scaler deletes its own, and wants to find it."""
        optimizer, found_inf = self._optimizer, self._found_inf
        self._found_inf, self._without_momentum = None, []
        if found_inf is None:
            return
        _speaking.discard(optimizer)
        if getattr(optimizer, _FOUND_INF, None) is not found_inf:
            return  # the step raised, and a scaler has spoken since
        delattr(optimizer, _FOUND_INF)
        vars(optimizer).update(self._before)

    def _momentum_can_wait(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a first step of fused SGD can be dropped on the device; remembers whose buffers it will make."""
        if not isinstance(optimizer, torch.optim.SGD):
            return True
        for group in optimizer.param_groups:
            if not group["momentum"]:
                continue
            fresh = [p for p in group["params"] if optimizer.state.get(p, {}).get("momentum_buffer") is None]
            if group["dampening"] and any(parameter.grad is not None for parameter in fresh):
                # A first step takes the gradient whole, a later one (1 - dampening) of it: zeros would not do.
                return False
            self._without_momentum += fresh
        return True


def _with_scaler(optimizer: torch.optim.Optimizer, dropped: bool | torch.Tensor) -> bool | torch.Tensor:  # noqa: FBT001
    """The veto's flag, or what a gradient scaler has told a fused optimizer already."""
    said = getattr(optimizer, _FOUND_INF, None)  # 0 of a scaler that saw no gradient
    if dropped is True or not isinstance(said, torch.Tensor):
        return dropped
    if dropped is False:
        # A scaler's word is its own affair, but for fused SGD, whose first momentum it would spoil, too.
        return said != 0 if isinstance(optimizer, torch.optim.SGD) else False
    return dropped.to(said.device) | (said != 0)


def _zero_first_momentum(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], *, found_inf: torch.Tensor
) -> None:
    """Puts zeros where a vetoed first step of fused SGD left buffers of uninitialised memory; never waits.

    Seen in torch 2.13: the next step reads NaN. From zeros it computes what a first step does, without dampening.
    """
    for parameter in parameters:
        buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if buffer is not None:
            buffer.copy_(torch.where(found_inf.to(buffer.device) > 0, 0.0, buffer))


def _hears_found_inf(optimizer: torch.optim.Optimizer, flag: torch.Tensor) -> bool:
    """Whether every parameter is stepped by a kernel that reads `found_inf` where `flag` is."""
    # The attribute by which optimizers tell torch's own GradScaler that they read found_inf; it has no public name.
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if not all(group.get("fused") for group in optimizer.param_groups):
        return False
    # Optimizers copy the flag to a parameter's device without waiting: fine towards a device, a race towards the host.
    return flag.device.type == "cpu" or not any(
        parameter.device.type == "cpu" for group in optimizer.param_groups for parameter in group["params"]
    )


def _drop_all(optimizer: torch.optim.Optimizer) -> None:
    drop_gradients(parameter for group in optimizer.param_groups for parameter in group["params"])


def _closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure that `step` was called with; `args[0]` is the optimizer."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure


def _with_silenced_closure(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Call | None:
    """The call with a closure whose gradients are taken away again; None where it has no closure."""
    closure = _closure(args, kwargs)
    if closure is None:
        return None

    def silenced() -> Any:
        loss = closure()
        _drop_all(optimizer)
        return loss

    return ((args[0], silenced, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": silenced})
