"""`Planting`: changes chosen micro-batches of somebody's training loop from outside, and watches it.

Enters: a `Loop` and the plants of one trial. Leaves: hooks on its model and optimizer for as long as it trains; what
they saw. Invariants: what is not planted keeps every bit, the global random state among it; the hooks are gone
afterwards. A micro-batch is counted by a forward of the model in training mode, a window ends where the next begins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab.errors import UsageError
from trimtab.proof.faults import FAULTS, Fault, Plant, micros_at
from trimtab.proof.loop import Loop
from trimtab.proof.snapshot import Snapshot, flat_gradients, take_snapshot

_NOISE_SEED: Final = 20_240_501

WHOLE_OUTPUT: Final = "output"
"""What the one tensor of an output that is a tensor is called."""


class Planting:
    """What one trial does to a loop, and what it saw of it.

    Attributes:
        num_forwards: Micro-batches so far.
        snapshots: What the loop's state was after each window, and first of all before any.
        gradients: Those that the optimizer found in its step of the first window that is planted, flat; None where it
            found none, or was not called.
        terms: The tensors of the model's output that a gradient flows through, by their places in it.
        backed: The sum of what backward was called on in each micro-batch, window by window; NaN where on nothing.
    """

    def __init__(self, loop: Loop, plants: Sequence[Plant], *, rank: int, sees_backward: bool = False) -> None:
        """Sees to nothing yet; `watching` does."""
        self._loop = loop
        self._optimizer = _with_hooks(loop.optimizer)
        self._sees_backward = sees_backward
        self._rank = rank
        self._places = [(window, micro) for window, micros in enumerate(loop.windows) for micro in range(len(micros))]
        self._plants: dict[tuple[int, int], Plant] = {}
        self._drops: set[int] = set()
        self._watched_window = min((plant.window for plant in plants), default=None)
        for plant in plants:
            if rank not in plant.ranks:
                continue
            if plant.dropped:
                self._drops.add(plant.window)
            for micro in micros_at(plant.place, num_micros=len(loop.windows[plant.window])):
                self._plants[plant.window, micro] = plant
        self._unreached: set[tuple[int, int]] = set()
        self.num_forwards = 0
        self.snapshots: list[Snapshot] = []
        self.gradients: np.ndarray | None = None
        self.terms: tuple[str, ...] = ()
        self.backed = [[float("nan")] * len(micros) for micros in loop.windows]

    @property
    def is_reached(self) -> bool:
        """Whether a backward has come to the model's output in each micro-batch that was planted on this rank."""
        return not self._unreached

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Plants while the loop trains in it.

        Raises:
            UsageError: The model was not called once a micro-batch.
        """
        handles = [
            # First of all: a hook of fully_shard would have gathered the parameters by then.
            self._loop.model.register_forward_pre_hook(self._before_forward, prepend=True),
            self._loop.model.register_forward_hook(self._after_forward),
            # Of every optimizer: a loop may have several.
            register_optimizer_step_pre_hook(self._before_step),
        ]
        try:
            with self._seeing_backward() if self._sees_backward else nullcontext():
                yield
        finally:
            for handle in handles:
                handle.remove()
        if self.num_forwards != len(self._places):
            raise self._miscounted(f"{self.num_forwards} times")
        self._take_snapshot()

    # The hooks.

    def _before_forward(self, model: nn.Module, args: Any) -> None:
        if not _trains(model):
            return
        if self.num_forwards >= len(self._places):
            raise self._miscounted("more often")
        if self._places[self.num_forwards][1] == 0:
            self._take_snapshot()

    def _after_forward(self, model: nn.Module, args: Any, output: Any) -> Any:
        if not _trains(model):
            return None
        place = self._places[self.num_forwards]
        self.num_forwards += 1
        plant = self._plants.get(place)
        if plant is None:
            return None
        self._unreached.add(place)
        terms: list[str] = []
        changed = mapped(output, partial(self._changed, plant=plant, place=place, terms=terms))
        if not terms:
            raise UsageError(
                f"The model's output ({type(output).__name__}) holds no tensor that a gradient flows through: "
                "Loop.model must be what the loss of a micro-batch comes from."
            )
        self.terms = tuple(terms)
        return changed

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = set(map(id, self._loop.model.parameters()))
        is_main = optimizer is self._optimizer
        if not (is_main or any(id(parameter) in own for parameter in parameters)):
            return
        window = self._places[self.num_forwards - 1][0]
        if window in self._drops:
            for parameter in parameters:
                parameter.grad = None
        if is_main and window == self._watched_window:
            self.gradients = flat_gradients(parameters)

    @contextmanager
    def _seeing_backward(self) -> Iterator[None]:
        """Notes the losses that backward is called on; `Tensor.backward` and a scaler's loss come by here."""
        backward = torch.autograd.backward

        def seen(tensors: Any, *args: Any, **settings: Any) -> Any:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            self._note(sum(float(root.detach().sum()) for root in roots))
            return backward(tensors, *args, **settings)

        torch.autograd.backward = seen
        try:
            yield
        finally:
            torch.autograd.backward = backward

    def _note(self, loss: float) -> None:
        if not 0 < self.num_forwards <= len(self._places):
            return
        window, micro = self._places[self.num_forwards - 1]
        before = self.backed[window][micro]
        self.backed[window][micro] = loss if math.isnan(before) else before + loss

    # Within.

    def _changed(
        self, name: str, tensor: torch.Tensor, *, plant: Plant, place: tuple[int, int], terms: list[str]
    ) -> torch.Tensor:
        """One tensor of the output; its name is added to `terms` if a gradient flows through it."""
        if not (tensor.requires_grad and tensor.is_floating_point()):
            return tensor
        terms.append(name)
        leaves_out = plant.left_out and plant.but_for != name

        def arrived(gradient: torch.Tensor) -> torch.Tensor | None:
            self._unreached.discard(place)
            return torch.zeros_like(gradient) if leaves_out else None

        if tensor.is_leaf:  # the model hands on a parameter: a hook on it would see every micro-batch's gradient
            tensor = tensor.view_as(tensor)
        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]
        fault = FAULTS[plant.fault] if plant.fault is not None else None
        if fault is None or fault.takes_tokens:
            return tensor
        # Of the place, so that ranks and micro-batches differ as they do in life.
        dice = torch.Generator().manual_seed(_NOISE_SEED + 1000 * place[0] + 10 * place[1] + self._rank)
        return spoiled(tensor, fault, size=plant.size, dice=dice)

    def _take_snapshot(self) -> None:
        self.snapshots.append(take_snapshot(self._loop))

    def _miscounted(self, found: str) -> UsageError:
        return UsageError(
            f"Loop.model was called {found} in training mode while {len(self._places)} micro-batches were trained, "
            "expected once a micro-batch: hand over as Loop.model what the loop calls (the DDP or FSDP wrapper where "
            "there is one), put it in training mode, and train over all windows that are handed in."
        )


def spoiled(tensor: torch.Tensor, fault: Fault, *, size: float, dice: torch.Generator) -> torch.Tensor:
    """A tensor with a fault in it, on the same graph.

    Args:
        tensor: Any shape, floating.
        fault: What to do to it.
        size: What the fault's noise is multiplied by; below zero it points the other way.
        dice: On the CPU; the global random state is left alone.
    """
    changed = tensor * fault.factor if fault.factor != 1.0 else tensor
    if fault.noise:
        # Positive, so that a mean of losses grows by it whatever the loss.
        noise = torch.rand(tensor.shape, generator=dice, dtype=torch.float64) + 0.5
        scale = fault.noise * size * tensor.detach().abs().max().clamp(min=1.0)
        changed = changed + noise.to(device=tensor.device, dtype=tensor.dtype) * scale
    if fault.shift:
        changed = changed + math.copysign(fault.shift, size)
    if fault.has_root:
        changed = changed + (tensor - tensor.detach()).abs().sqrt()
    return changed


def mapped(output: Any, change: Callable[[str, torch.Tensor], torch.Tensor], name: str = WHOLE_OUTPUT) -> Any:
    """A model's output with each tensor in it changed.

    Args:
        output: A tensor, or mappings, lists, tuples and dataclasses of such; a mapping that can be changed is, others
            are made anew.
        change: Is called by each tensor's place, such as `output["logits"]` or `output[0]`, and the tensor.
        name: What the output is called.
    """
    if isinstance(output, torch.Tensor):
        return change(name, output)
    if isinstance(output, Mapping):
        items = {key: mapped(value, change, f"{name}[{key!r}]") for key, value in output.items()}
        if not isinstance(output, MutableMapping):
            return items
        for key, value in items.items():
            output[key] = value
        return output
    if isinstance(output, list | tuple):
        parts = [mapped(value, change, f"{name}[{place}]") for place, value in enumerate(output)]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = [field.name for field in dataclasses.fields(output) if field.init]
        return dataclasses.replace(
            output, **{field: mapped(getattr(output, field), change, f"{name}.{field}") for field in fields}
        )
    return output


def _trains(model: nn.Module) -> bool:
    return model.training and torch.is_grad_enabled()


def _with_hooks(optimizer: Any) -> torch.optim.Optimizer:
    """The outermost optimizer that has step hooks; accelerate's wrapper has the methods and no hooks."""
    found = optimizer
    while found is not None:
        if isinstance(found, torch.optim.Optimizer) and hasattr(found, "_optimizer_step_pre_hooks"):
            return found
        found = getattr(found, "optimizer", None)
    raise UsageError(
        f"Loop.optimizer is of type {type(optimizer).__name__} and has no step hooks, expected the "
        "torch.optim.Optimizer whose step() changes the parameters."
    )
