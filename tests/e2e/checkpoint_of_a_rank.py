"""Functions of two ranks that save together; `tests/rank_pair.py` calls them on both.

Both train alike, and each has random numbers and a data position of its own.
"""

import runpy
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.torch.checkpoint_ranks import RanksTogether

Training = runpy.run_path(str(Path(__file__).with_name("small_training.py")))["Training"]
Faulty = runpy.run_path(str(Path(__file__).parents[1] / "faulty_disk.py"))["Faulty"]


def save(folder: Path, step: int, *, disk: Any = None) -> Any:
    training = Training().advance(step)
    torch.manual_seed(10 * step + dist.get_rank())
    settings = {} if disk is None else {"disk": disk}
    return training.save(Checkpointer(folder, keep=1, run_id="a", **settings))


def of_all_where_one_fails(rank: int) -> str:
    """What a rank hears where one of them could not do its part."""

    def make() -> int:
        if dist.get_rank() == rank:
            raise OSError("planted")
        return dist.get_rank()

    try:
        return str(RanksTogether(None).of_all(make))
    except CheckpointError as error:
        return str(error)


def prepare(folder: str) -> None:
    save(Path(folder), 1)


def disturbed(folder: str, rank: int, at: int, what: str | int) -> Any:
    """One save with a disk that fails on one rank; whether it was saved."""
    disk = Faulty(at if dist.get_rank() == rank else -1, what)
    saved = save(Path(folder), 2, disk=disk)
    return {"saved": saved is not None, "num": disk.num}


def fail_everywhere(folder: str, rank: int, what: int, every: int) -> list[dict[str, Any]]:
    """A disk that fails on one rank, at each of its changes; what both find afterwards."""
    made, place = Path(folder) / "made", Path(folder) / "place"
    save(made, 1)
    num = [0, 0]
    counted = disturbed(copied(made, Path(folder) / "counted"), 0, -1, what)["num"]
    dist.all_gather_object(num, counted)
    rounds = []
    for at in range(0, num[rank], every):
        told = {"at": at} | disturbed(copied(made, place), rank, at, what)
        dist.barrier()
        told["left"] = sorted(path.name for path in place.glob("*.tmp-*"))
        info = Checkpointer(place).pick()
        training = Training.resume(Checkpointer(place), info)
        told["step"] = info.step
        random_numbers = torch.get_rng_state()
        torch.manual_seed(10 * info.step + dist.get_rank())
        told["exact"] = bool(torch.equal(random_numbers, torch.get_rng_state()))
        expected = Training().advance(info.step).model.state_dict()
        told["exact"] &= all(torch.equal(expected[name], value) for name, value in training.model.state_dict().items())
        told["saved_next"] = save(place, 3) is not None
        rounds.append(told)
    return rounds


class Watched:
    """Stands for a run whose watch says something else on each rank: its own memory is each rank's own business."""

    run_id = "a"

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1}

    def unhealthy_because(self) -> tuple[str, ...]:
        return ("alike on all", f"memory of rank {dist.get_rank()}") if dist.get_rank() else ()

    def unhealthy_since(self) -> int:
        return 7


def save_what_watches_say(folder: str) -> bool:
    """Whether a checkpoint is healthy that is saved while a watch on rank 1 alone has something to say."""
    training = Training().advance(1)
    parts = {"model": training.model, "optimizer": training.optimizer}
    return bool(Checkpointer(folder, run_id="a").save(1, **parts, run=Watched()).healthy)


def copied(made: Path, place: Path) -> str:
    """A fresh copy, made by rank 0."""
    if dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
    dist.barrier()
    return str(place)
