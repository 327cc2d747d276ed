"""What Trimtab does among several processes: today one of them is recorded, and a guard is refused."""

from __future__ import annotations

import torch

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.notices import warn_once


def records_here(guard: GuardConfig | None, *, record: bool) -> bool:
    """Whether this process records; refuses a guard among several processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return record
    world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if world_size == 1:
        return record
    if guard is not None and guard.enabled:
        raise UsageError(
            f"This version's guard decides in one process, and {world_size} are running: their verdicts could differ, "
            "and the ranks would drift apart. Pass guard=None here."
        )
    if record:
        warn_once(
            "recorder",
            f"{world_size} processes train, and this version records one of them: "
            + (
                f"rank 0 of {world_size}; shares are over its rows only."
                if rank == 0
                else f"rank {rank} is not recorded."
            ),
            cause="several processes",
        )
    return record and rank == 0
