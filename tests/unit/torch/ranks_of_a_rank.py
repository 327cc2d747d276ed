"""What each of two real ranks does for `test_ranks.py` and `test_meeting.py`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.recorder.meeting import Word
from trimtab.torch.meeting import StoreMeeting, default_store, meeting_place
from trimtab.torch.ranks import Ranks
from trimtab.values import RunHeader

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


def refused_unlike(of_rank: list[dict[str, Any]]) -> str:
    """What is said where the ranks have these settings."""
    ranks = Ranks.of()
    try:
        ranks.refuse_unlike(of_rank[ranks.rank])
    except UsageError as error:
        return str(error)
    return ""


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


def place_of(out: str, guard: GuardConfig | None = None) -> Callable[[], StoreMeeting] | None:
    return meeting_place(Ranks.of(), out=out, header=RunHeader(run_id=None, backend="torch"), guard=guard)


def meet(outs: list[str], words: list[list[Any]]) -> dict[str, Any]:
    """Rank 0 says a word to each run in turn; the other listens before and after."""
    rank = dist.get_rank()
    with CountCollectives() as counted:
        meetings = [place() for out in outs if (place := place_of(out)) is not None]
    early = [meeting.heard() for meeting in meetings] if rank else None
    dist.barrier()
    with counted:
        for meeting, word in zip(meetings, words, strict=True):
            if rank == 0:
                meeting.tell(Word(*word))
    dist.barrier()
    with counted:
        late = [meeting.heard() for meeting in meetings] if rank else None
        again = [meeting.heard() for meeting in meetings] if rank else None
    return {"early": early, "late": late, "again": again, "collectives": counted.names}


def seat_of(out: str, guard: GuardConfig | None = None) -> StoreMeeting:
    place = place_of(out, guard)
    assert place is not None
    return place()


def meet_after_others(out: str, num_others: int) -> list[Word | None]:
    """Rank 0 alone trains and ends some runs; then both train in two, that are made at once."""
    rank = dist.get_rank()
    for number in range(num_others if rank == 0 else 0):
        alone = seat_of(out)
        alone.tell(Word(f"alone {number}", 1, "/d"))
        alone.tell_end()
    dist.barrier()
    meetings = [seat_of(out), seat_of(out)]
    heard = []
    for number, meeting in enumerate(meetings, 1):
        if rank:
            assert meeting.heard() is None
        dist.barrier()
        if rank == 0:
            meeting.tell(Word(f"own {number}", 1, "/d"))
            meeting.tell_end()
        dist.barrier()
        heard.append(meeting.heard() if rank else None)
    return heard


def meet_beside_another_guard(out: str) -> Word | None:
    rank = dist.get_rank()
    if rank == 0:
        seat_of(out).tell(Word("alone", 1, "/d"))
    meeting = seat_of(out, GuardConfig(rule="robust"))
    if rank == 0:
        meeting.tell(Word("own", 1, "/d"))
    dist.barrier()
    return meeting.heard() if rank else None


def meet_late(out: str) -> dict[str, Word | None]:
    rank = dist.get_rank()
    meetings = [seat_of(out), seat_of(out)]
    if rank == 0:
        meetings[0].tell(Word("one", 1, "/d"))
        meetings[0].tell_end()
    dist.barrier()
    heard = {"before": meetings[0].heard(), "at_end": meetings[0].heard(at_end=True)} if rank else {}
    dist.barrier()
    if rank == 0:
        meetings[1].tell(Word("two", 1, "/d"))
    dist.barrier()
    return heard | {"next": meetings[1].heard()} if rank else {}


def the_store_is_there() -> list[Any]:
    store = default_store()
    return [store is not None, store is not None and store.check(["trimtab: nobody sets this"])]


def meet_without_a_store(out: str) -> list[Any]:
    private = dist.distributed_c10d._get_default_store
    del dist.distributed_c10d._get_default_store
    try:
        place = place_of(out)
        assert place is not None
        meeting = place()
        meeting.tell(Word("r", 1, "/r"))
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
        place = place_of(out)
        assert place is not None
        meeting = place()
        if meeting.rank == 0:
            meeting.tell(Word("r", 1, "/r"))
        return [meeting.heard()]
    finally:
        dist.distributed_c10d._get_default_store = private
