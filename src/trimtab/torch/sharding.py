"""`UnshardedParameters`: on which parameters a gradient hook fires, where others are what a sharded model shows.

Enters: the parameters that a model and its optimizer show. Leaves: the same, and in the place of each shard the
parameter that backward knows. Under `fully_shard` the two differ: hooks on the shards never fire, those on the
unsharded parameters do, and these stay the same objects for as long as the module is sharded.

Invariant: a parameter on which no hook is known to fire is refused; it is never passed over in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trimtab.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class UnshardedParameters:
    """Finds the parameter behind each shard, and remembers it."""

    def __init__(self, model: nn.Module | None) -> None:
        """Looks at nothing yet.

        Args:
            model: The model whose modules may be `fully_shard` ones; None: nothing is sharded.
        """
        self._model = model
        self._behind: dict[int, tuple[torch.Tensor, nn.Parameter]] = {}
        self._seen: set[int] = set()
        self._is_managed = False

    def in_place_of(self, shown: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The parameters on which hooks fire.

        The first call that meets a shard gathers every `fully_shard` module in turn, which every rank must do
        alike; later calls look only.

        Args:
            shown: Parameters of the model and of its optimizer, in any state between forward and backward.

        Raises:
            UsageError: If a parameter is sharded otherwise than by `fully_shard`, or not materialised yet.
        """
        ids, is_managed = set(map(id, shown)), _is_managed(self._model)
        if not ids <= self._seen or is_managed != self._is_managed:
            refuse_uninitialized(shown)
            self._seen |= ids
            self._is_managed = is_managed
            self._refuse_other_libraries(shown)
        if any(is_shard(parameter) and id(parameter) not in self._behind for parameter in shown):
            self._gather()
        found = []
        for parameter in shown:
            if not is_shard(parameter):
                found.append(parameter)
            elif id(parameter) in self._behind:
                found.append(self._behind[id(parameter)][1])
            elif parameter.requires_grad:
                raise UsageError(
                    f"The parameter {self._name_of(parameter)} is a DTensor of no fully_shard module (placements "
                    f"{parameter.placements}): the guard's way to keep a micro-batch out is not proven under tensor "
                    "parallelism. Pass guard=None, or shard the model by torch.distributed.fsdp.fully_shard alone."
                )
        return found

    def _gather(self) -> None:
        from torch.distributed.fsdp import FSDPModule  # takes long to load; here a shard is at hand, so it is there

        for module in self._sharded_modules():
            if any(parameter.is_meta for parameter in module.parameters()):
                raise UsageError(
                    "A fully_shard module is still on the meta device: a guard needs parameters that hold values. Call "
                    "model.to_empty(device=...) and initialise or load them before the first micro-batch."
                )
            assert isinstance(module, FSDPModule)
            module.unshard()
            unsharded = {name: parameter for name, parameter in module.named_parameters() if not is_shard(parameter)}
            module.reshard()
            shards = dict(module.named_parameters())
            for name, parameter in unsharded.items():
                if is_shard(shards[name]):
                    self._behind[id(shards[name])] = (shards[name], parameter)

    def _refuse_other_libraries(self, shown: Sequence[nn.Parameter]) -> None:
        found = None
        if self._model is not None and "torch.distributed.fsdp" in sys.modules:
            known = {id(below) for module in self._sharded_modules() for below in module.modules()}
            if any(_is_managed(module) and id(module) not in known for module in self._model.modules()):
                found = "torch.distributed.fsdp.FullyShardedDataParallel (FSDP1)"
        # DeepSpeed marks the parameters that its third stage has taken apart.
        if any(hasattr(parameter, "ds_id") for parameter in shown):
            found = "DeepSpeed ZeRO stage 3"
        if found is not None:
            raise UsageError(
                f"The model is sharded by {found}, in which no hook on a parameter's gradient is known to fire: a "
                "micro-batch could not be kept out of the update. Use torch.distributed.fsdp.fully_shard or "
                "DistributedDataParallel, or pass guard=None to record only."
            )

    def _sharded_modules(self) -> list[nn.Module]:
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if self._model is None or fsdp is None:
            return []
        return [module for module in self._model.modules() if isinstance(module, fsdp.FSDPModule)]

    def _name_of(self, parameter: torch.Tensor) -> str:
        named = self._model.named_parameters() if self._model is not None else []
        return next((repr(name) for name, other in named if other is parameter), "that only the optimizer knows")


def refuse_uninitialized(tensors: Iterable[torch.Tensor]) -> None:
    """Refuses, with `UsageError`, what a lazy module holds before its first batch: it takes no hook."""
    if any(is_lazy(tensor) for tensor in tensors):
        raise UsageError(
            "The model holds a lazy module (torch.nn.LazyLinear, LazyBatchNorm1d, ...) that has seen no batch yet: run "
            "one forward first, under torch.no_grad(), then make the guard or the Run."
        )


def is_shard(parameter: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a parameter is a part of one that lies on several ranks, so that no hook on it fires."""
    # Where nobody has imported it nothing can be one, and it takes long to load.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(parameter, module.DTensor)


def _is_managed(module: nn.Module | None) -> bool:
    # FSDP1 shows plain parameters, even the same objects as before, and its own module may be above what is known here.
    # The mark that it puts on every module below is torch's own and not public; fully_shard uses it too.
    return bool(getattr(module, "_is_fsdp_managed_module", False))
