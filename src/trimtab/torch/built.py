"""`Training`: a model with what belongs to it; and whether what a function has built is one of its own.

Enters: the live training, and what `build()` gave. Leaves: a `Training`, or a `UsageError`: what shares anything with
the live one is refused before a checkpoint is loaded into it. Invariant: nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trimtab.errors import CheckpointError, UsageError
from trimtab.text import plain
from trimtab.torch.checkpoint_arguments import check_model, check_optimizer, check_state_holder
from trimtab.torch.checkpoint_plan import Goals
from trimtab.torch.lr import inside_of
from trimtab.torch.lr_schedules import leaves, unwrapped
from trimtab.torch.module_names import module_inside
from trimtab.torch.optimizer_names import parameters_by_name
from trimtab.torch.placement import is_sharded, placed

_AFRESH = "Build model, optimizer and scheduler afresh: a checkpoint is loaded into them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What trains, or what was built like it.

    Attributes:
        model: The model, wrapped or not.
        optimizer: Its optimizer.
        scheduler: Its scheduler, if it has one.
        scaler: Its gradient scaler, likewise.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any

    def check(self) -> None:
        """Refuses, with `UsageError`, what is none, or is sharded by what keeps its state to itself."""
        check_model(self.model)
        check_optimizer(self.optimizer)
        for name in ("scheduler", "scaler"):
            for method in ("state_dict", "load_state_dict"):
                check_state_holder(getattr(self, name), name=name, method=method)
        is_sharded(self.model)

    def goals(self) -> Goals:
        """It as what a checkpoint is loaded into."""
        return Goals(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            lr=None,
            scaler=self.scaler,
            run=None,
            data=None,
        )


def training_of(given: object, *, live: Training) -> Training:
    """What `build()` gave, found to be a training of its own.

    Args:
        given: A model, an optimizer and a scheduler or None; a gradient scaler, where the live training has one.
        live: The live training.

    Raises:
        UsageError: It is something else, or shares something with the live training.
        CheckpointError: It has a scheduler or a scaler that the training has not, or the reverse.
    """
    num = 3 if live.scaler is None else 4
    if not isinstance(given, tuple | list) or len(given) != num:
        what = "a model, an optimizer and a scheduler or None" + ("" if live.scaler is None else ", and a scaler")
        found = f"{len(given)} values" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
        raise UsageError(f"build() gives {found}, expected {what}.")
    model, optimizer, scheduler, scaler = (*given, None)[:4]
    try:
        built = Training(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
        built.check()
    except UsageError as error:
        raise UsageError(f"What build() gives is no training: {error}") from error
    shared = next(_shared(built, live), None)
    if shared is not None:
        raise UsageError(f"What build() gives is, or holds, {shared} of the live training. {_AFRESH}")
    if (scheduler is None) != (live.scheduler is None):
        has, lacks = (
            ("The training", "build() makes none") if scheduler is None else ("build()", "the training has none")
        )
        raise CheckpointError(f"{has} has a scheduler, and {lacks}: build what trains, or pass scheduler=.")
    return built


def _shared(built: Training, live: Training) -> Iterator[str]:
    """What of the live training is in what was built."""
    if module_inside(built.model) is module_inside(live.model):
        yield "the model"
    if inside_of(built.optimizer) is inside_of(live.optimizer):
        yield "the optimizer"
    if live.scaler is not None and built.scaler is live.scaler:
        yield "the scaler"
    optimizers = (inside_of(live.optimizer), live.optimizer)
    for one in leaves(unwrapped(built.scheduler)):
        if any(one is other for other in leaves(unwrapped(live.scheduler))):
            yield "the scheduler"
        if any(getattr(one, "optimizer", None) is optimizer for optimizer in optimizers):
            yield "in its scheduler, the optimizer"
    taken = {place: name for name, place in _places(_tensors(live))}
    yield from (plain(taken[place]) for _, place in _places(_tensors(built)) if place in taken)


def _tensors(training: Training) -> Iterator[tuple[str, torch.Tensor]]:
    inside = module_inside(training.model)
    yield from inside.named_parameters()
    yield from inside.named_buffers()
    for group in parameters_by_name(training.optimizer, inside):
        yield from group.items()


def _places(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, tuple[torch.device, int]]]:
    """Where in memory they lie, those that lie anywhere."""
    for name, tensor in tensors:
        local = placed(tensor).local
        if local.layout is torch.strided and not local.is_meta and local.numel():
            yield name, (local.device, local.untyped_storage().data_ptr())
