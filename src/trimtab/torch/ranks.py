"""Which of several processes this is, and the one sum by which their guards decide alike.

Enters: a process group, and the figures of one micro-batch on this rank. Leaves: their sum over the group's ranks.
Invariant: what was handed over is not changed, and every rank gets the same bits: from them every rank's rule, whose
history holds nothing but such sums, draws the same verdict, so nobody has to be asked.

Who decides: every rank, for itself, from the sum. When ranks agree: always, as long as each calls `summed` once a
micro-batch, whatever its losses are. A rank that is lost or stuck holds all others in their next sum, as it does in the
next reduction of gradients: the timeout of torch.distributed (`init_process_group(timeout=...)`) ends them, and there
is none beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import torch
import torch.distributed as dist

from trimtab.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes that train on different rows of the same data.

    Attributes:
        rank: This process's place among them, 0 and up.
        world_size: How many they are.
        group: Their process group; None: this process is alone.
        records: Whether this rank's rows belong into the log: where several groups train on the same rows (tensor or
            context parallelism), those of the group that the first process of all is in.
        device_types: Where the group's backends can sum, the first where none of them fits; none when alone.
    """

    rank: int
    world_size: int
    group: dist.ProcessGroup | None
    records: bool
    device_types: tuple[str, ...] = ()

    @classmethod
    def of(cls, process_group: dist.ProcessGroup | None = None) -> Ranks:
        """The ranks of a group; no collective is called.

        Args:
            process_group: The group whose ranks see different rows. None: the default group where torch.distributed is
                initialised, else this process alone.

        Raises:
            UsageError: This process is not in the group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            if process_group is not None:
                raise UsageError(
                    "A process_group was handed over and torch.distributed is not initialised: call "
                    "torch.distributed.init_process_group first, or leave process_group out."
                )
            return cls(rank=0, world_size=1, group=None, records=True)
        rank = dist.get_rank(process_group)
        if rank < 0:
            raise UsageError(
                f"Process {dist.get_rank()} is not in the process_group that was handed over: pass the group in which "
                "it trains on rows of its own (the data-parallel group)."
            )
        world_size = dist.get_world_size(process_group)
        records = process_group is None or 0 in dist.get_process_group_ranks(process_group)
        if world_size == 1:
            return cls(rank=0, world_size=1, group=None, records=records)
        # Looked up here and not at each sum: torch.compile traces a sum, and not the words of a configuration.
        backends = dist.get_backend_config(process_group).split(",")  # "cpu:gloo,cuda:nccl"
        device_types = tuple(entry.partition(":")[0] for entry in backends)
        group = dist.group.WORLD if process_group is None else process_group
        return cls(rank=rank, world_size=world_size, group=group, records=records, device_types=device_types)

    def refuse_change(self, process_group: dist.ProcessGroup | None, *, made: str = "Run") -> None:
        """Refuses to go on alone where torch.distributed was initialised since; a look at it, no collective.

        Args:
            process_group: What `of` was called with.
            made: What was made then, for the message.

        Raises:
            UsageError: The ranks would decide each for itself, and train apart without a word.
        """
        if not self.alone or process_group is not None or not (dist.is_available() and dist.is_initialized()):
            return
        world_size = dist.get_world_size()
        if world_size > 1:
            raise UsageError(
                f"The {made} was made before torch.distributed was initialised, which has {world_size} ranks now: each "
                f"would decide and record for itself. Make the {made} after torch.distributed.init_process_group."
            )

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with: nothing is reduced then."""
        return self.group is None

    def summed(self, figures: torch.Tensor) -> torch.Tensor:
        """The sum of each figure over the ranks, the same bits on every rank; blocks until all have called it.

        On the CPU it waits for the slowest rank. On a device only the device does, where its backend works on a stream
        (NCCL); figures on a device that the group's backend cannot reach are carried to one that it can, which waits.

        Args:
            figures: (k,) float64, finite: one NaN makes the sum of all ranks NaN, so a flag travels as a figure of its
                own, and not by a maximum (gloo loses a NaN in MAX on every rank but the first). float64, because
                float32 counts tokens to 2**24 only.

        Returns:
            (k,) float64 on the same device: `figures` itself when alone, else a tensor of its own.
        """
        if self.group is None:
            return figures
        device = figures.device
        total = figures.detach()
        total = total.clone() if device.type in self.device_types else total.to(self.device_types[0])
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=self.group)
        return total.to(device)

    def refuse_unlike(self, settings: Mapping[str, object]) -> None:
        """Refuses to go on where another rank's guard has other settings; one collective, and a wait, where not alone.

        Args:
            settings: Plain values by name; the same names on every rank.

        Raises:
            UsageError: On every rank, for from then on each would decide for itself and train apart.
        """
        if self.alone:
            return
        # Numbers below 2**20, so that the sums of their squares are exact: what is equal to the mean of all, square
        # and all, on every rank is the same on every rank.
        marks = [int.from_bytes(sha256(repr(value).encode()).digest()[:3]) >> 4 for value in settings.values()]
        own = torch.tensor([marks, [mark * mark for mark in marks]], dtype=torch.float64)
        together = self.summed(own.flatten()).view_as(own)
        unlike = (together != own * self.world_size).any(0).tolist()
        named = [
            f"{name}={value!r}" for (name, value), is_unlike in zip(settings.items(), unlike, strict=True) if is_unlike
        ]
        if named:
            raise UsageError(
                f"The ranks have guards with different settings; rank {self.rank} has {', '.join(named)}. Give every "
                "rank the same GuardConfig, and load a saved state on every rank or on none: each decides for itself, "
                "from the same sums."
            )
