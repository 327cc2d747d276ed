"""What each of two real ranks does for `test_ranks.py` and `test_meeting.py`."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import UsageError
from trimtab.torch.meeting import default_store, meeting_place
from trimtab.torch.ranks import Ranks

_groups: list[dist.ProcessGroup] = []


class CountCollectives(TorchDispatchMode):
    """Names of the collectives that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def who() -> list[Any]:
    ranks = Ranks.of()
    return [ranks.rank, ranks.world_size, ranks.alone, ranks.records]


def summed(of_rank: list[list[float]]) -> dict[str, Any]:
    ranks = Ranks.of()
    figures = torch.tensor(of_rank[ranks.rank], dtype=torch.float64, requires_grad=True)
    with CountCollectives() as counted:
        total = ranks.summed(figures)
    return {
        "total": [value.hex() for value in total.tolist()],
        "figures": figures.tolist(),
        "dtype": str(total.dtype),
        "requires_grad": total.requires_grad,
        "collectives": counted.names,
    }


def summed_compiled(of_rank: list[list[float]]) -> list[float]:
    ranks = Ranks.of()
    compiled = torch.compile(lambda figures: ranks.summed(figures * 2) + 1, fullgraph=True, backend="eager")
    return compiled(torch.tensor(of_rank[ranks.rank], dtype=torch.float64)).tolist()


def in_a_group_of_its_own() -> list[Any]:
    """Each rank alone in a group: what tensor parallelism of two makes of the data-parallel groups."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    own = Ranks.of(groups[dist.get_rank()])
    figures = torch.tensor([3.0], dtype=torch.float64)
    return [own.rank, own.world_size, own.alone, own.records, own.summed(figures) is figures]


def in_the_group_of_the_other() -> str:
    groups = [dist.new_group([rank]) for rank in range(2)]
    try:
        Ranks.of(groups[1 - dist.get_rank()])
    except UsageError as error:
        return str(error)
    return "nothing was refused"


def meet(outs: list[str], words: list[list[Any]]) -> dict[str, Any]:
    """Rank 0 says a word to each run in turn; the other listens before and after."""
    rank = dist.get_rank()
    with CountCollectives() as counted:
        meetings = [place() for out in outs if (place := meeting_place(Ranks.of(), out=out)) is not None]
    early = [meeting.heard() for meeting in meetings] if rank else None
    dist.barrier()
    with counted:
        for meeting, word in zip(meetings, words, strict=True):
            if rank == 0:
                meeting.tell(*word)
    dist.barrier()
    with counted:
        late = [meeting.heard() for meeting in meetings] if rank else None
        again = [meeting.heard() for meeting in meetings] if rank else None
    return {"early": early, "late": late, "again": again, "collectives": counted.names}


def the_store_is_there() -> list[Any]:
    store = default_store()
    return [store is not None, store is not None and store.check(["trimtab: nobody sets this"])]


def meet_without_a_store(out: str) -> list[Any]:
    private = dist.distributed_c10d._get_default_store
    del dist.distributed_c10d._get_default_store
    try:
        place = meeting_place(Ranks.of(), out=out)
        assert place is not None
        meeting = place()
        meeting.tell("r", 1)
        return [meeting.heard()]
    finally:
        dist.distributed_c10d._get_default_store = private


def meet_where_the_store_is_gone(out: str) -> list[Any]:
    """As after the host of the store has died: each question to it raises."""

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise dist.DistNetworkError("connection reset by peer")

    private = dist.distributed_c10d._get_default_store
    dist.distributed_c10d._get_default_store = Gone
    try:
        place = meeting_place(Ranks.of(), out=out)
        assert place is not None
        meeting = place()
        if meeting.rank == 0:
            meeting.tell("r", 1)
        return [meeting.heard()]
    finally:
        dist.distributed_c10d._get_default_store = private
