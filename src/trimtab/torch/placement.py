"""Whether a model lies on several ranks, and `Placed`: the part of a tensor that this rank holds.

Enters: a tensor, plain or a DTensor of any mesh. Leaves: this rank's part, which shares its memory, and its offsets.
Invariant: the parts of all ranks cover the whole; no collective is called.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.torch.sharding import is_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A rank's part of a tensor.

    Attributes:
        local: The part; detached, and in the memory of the tensor itself. Empty where this rank holds none of it.
        shape: Of the whole tensor.
        offsets: Where the part begins in each dimension of the whole.
    """

    local: torch.Tensor
    shape: torch.Size
    offsets: tuple[int, ...]

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same part of another tensor of the whole shape: a view."""
        for dim, (offset, size) in enumerate(zip(self.offsets, self.local.shape, strict=True)):
            # Past the end begins what a rank holds none of.
            whole = whole.narrow(dim, min(offset, self.shape[dim]), size)
        return whole

    def indices_in_whole(self, indices: torch.Tensor) -> torch.Tensor:
        """Flat indices in the whole tensor of flat indices in the part.

        Args:
            indices: (k,) int64, into `local.flatten()`.

        Returns:
            (k,) int64, into the flattened whole, in the same order.
        """
        if self.local.shape == self.shape:
            return indices
        found = torch.zeros_like(indices)
        stride = 1
        for dim in reversed(range(len(self.shape))):
            size = self.local.shape[dim]
            found += (indices % size + self.offsets[dim]) * stride
            indices = indices // size
            stride *= self.shape[dim]
        return found


def placed(tensor: torch.Tensor) -> Placed:
    """This rank's part of a tensor; all of it where the tensor is a plain one.

    Args:
        tensor: Plain, or a DTensor; a sum that is not reduced yet (a Partial placement) is refused by torch.
    """
    tensor = tensor.detach()
    if not is_shard(tensor):
        return Placed(local=tensor, shape=tensor.shape, offsets=(0,) * tensor.dim())
    local = tensor.to_local()
    if tensor.device_mesh.get_coordinate() is None:
        # Of another mesh than this rank's.
        empty = local.new_empty((0,) * max(1, tensor.dim()))
        return Placed(local=empty, shape=tensor.shape, offsets=(0,) * empty.dim())
    [chunk] = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return Placed(local=local, shape=tensor.shape, offsets=tuple(chunk.offsets))


def is_sharded(model: nn.Module) -> bool:
    """Whether parts of the model lie on other ranks.

    Raises:
        UsageError: A library has sharded it whose state only the library itself can save.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    modules = list(model.modules())
    found = None
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in modules):
        found = "torch.distributed.fsdp.FullyShardedDataParallel (FSDP1)"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        found = "DeepSpeed ZeRO stage 3"
    if found is not None:
        raise UsageError(
            f"The model is sharded by {found}, whose state only that library can save. Use "
            "torch.distributed.fsdp.fully_shard, which this checkpoint holds for any number of ranks, or DDP."
        )
    # After a forward a fully_shard module may show its parameters whole, until backward or the next state_dict.
    if fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in modules):
        return True
    return any(is_shard(tensor) for tensor in (*model.parameters(), *model.buffers()))
