"""What each of two real ranks does for `test_round_trip_two_ranks.py`."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab import Run, UsageError
from trimtab.checkpoint import Checkpointer, RoundTrip, round_trip

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def under_ddp() -> Any:
    """Statistics of the batches are a buffer, which differs between the ranks until the next forward."""
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Embedding(7, 4), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(4, 7))
    return with_optimizer(DistributedDataParallel(bare))


def sharded() -> Any:
    """Seven rows, which two ranks cannot share evenly, and tied weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4), nn.Linear(4, 7, bias=False))
    model[4].weight = model[0].weight
    fully_shard(model[1])
    fully_shard(model)
    return with_optimizer(model)


BUILDS = {"under_ddp": under_ddp, "sharded": sharded}


def with_optimizer(model: nn.Module) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def take_step(model: nn.Module, optimizer: Any, scheduler: Any) -> float:
    ids = torch.randint(0, 7, (3, 5))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    return loss.item()


def parts_of(model: nn.Module, optimizer: Any, scheduler: Any) -> dict[str, Any]:
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def told(result: RoundTrip) -> dict[str, Any]:
    return result.to_facts()


def train(folder: str, *, kind: str, goes_round: bool) -> dict[str, Any]:
    """Three steps, each saved; the random numbers of the ranks differ."""
    live = BUILDS[kind]()
    torch.manual_seed(10 + dist.get_rank())
    checkpoints = Checkpointer(folder, run_id="a")
    losses, results = [], []
    for step in range(1, 4):
        losses.append(take_step(*live))
        saved = checkpoints.save(step, **parts_of(*live), loss=losses[-1])
        if goes_round:
            results.append(
                round_trip(saved, build=BUILDS[kind], **parts_of(*live), loss=losses[-1], step=step, probe_ids=IDS)
            )
    bits = [
        (value.to_local() if isinstance(value, DTensor) else value).tolist() for value in live[0].state_dict().values()
    ]
    return {"training": [losses, bits, torch.rand(2).tolist()], "results": [told(result) for result in results]}


def go_round(folder: str, *, kind: str, change_on: int | None = None, flip: bool = False) -> dict[str, Any]:
    live = BUILDS[kind]()
    take_step(*live)
    saved = Checkpointer(folder, run_id="a").save(1, **parts_of(*live))
    if change_on == dist.get_rank():
        with torch.no_grad():
            weight = next(live[0].parameters())
            (weight.to_local() if isinstance(weight, DTensor) else weight)[0, 0] = 9.0
    if flip and dist.get_rank() == 0:
        path = max(saved.path.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    dist.barrier()
    return told(round_trip(saved, build=BUILDS[kind], **parts_of(*live), probe_ids=IDS))


def fails_on_rank_1(folder: str) -> dict[str, Any]:
    live = under_ddp()
    saved = Checkpointer(folder, run_id="a").save(1, **parts_of(*live))

    def build() -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory")
        return with_optimizer(nn.Sequential(nn.Embedding(7, 4), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(4, 7)))

    return told(round_trip(saved, build=build, **parts_of(*live)))


def records(folder: str) -> str | None:
    """The run's folder."""
    live = under_ddp()
    model, optimizer, _ = live
    with Run(folder, model=model, optimizer=optimizer) as run:
        ids = torch.randint(0, 7, (3, 5))
        losses = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), reduction="none").view(3, 5)
        run.micro_batch(losses, rows=[0, 1, 2]).backward()
        run.step()
        saved = Checkpointer(f"{folder}/checkpoints").save(1, **parts_of(*live), run=run)
        round_trip(saved, build=under_ddp, **parts_of(*live), run=run)
        return str(run.folder)


def other_arguments(folder: str) -> str:
    live = under_ddp()
    saved = Checkpointer(folder, run_id="a").save(1, **parts_of(*live))
    try:
        round_trip(saved, build=under_ddp, **parts_of(*live), step=dist.get_rank())
    except UsageError as error:
        return str(error)
    return "nothing"


def old_shards(folder: str) -> str:
    live = with_optimizer(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")))
    try:
        round_trip(Path(folder) / "step_1", build=sharded, **parts_of(*live))
    except UsageError as error:
        return str(error)
    return "nothing"
