"""What each rank does for `test_checkpoint_sharded.py` and `test_checkpoint_elastic.py`, or one process by itself."""

import errno
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.resume.disk_changes import Disk

NUM_ROWS = 16


class Net(nn.Module):
    """Weights that no number of ranks here shares evenly, one smaller than the ranks, two that are tied, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        self.scale = nn.Parameter(torch.randn(2, 6))
        self.frozen = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        return self.head(self.body(hidden) * self.scale.sum(0) + hidden @ self.frozen)


class Training:
    """A model, its optimizer and schedule in the layout that is asked for.

    plain, ddp, fsdp2; hsdp: shards on two ranks, replicas of them on the others; 2d: the body split by columns and rows
    over two ranks (tensor parallelism), and sharded over the others.
    """

    def __init__(self, folder: str, *, layout: str, seed: int, kind: str = "adamw", disk: Disk | None = None) -> None:
        torch.manual_seed(seed)
        self.net = Net().double()
        self.model: nn.Module = self.net
        if layout == "fsdp2":
            fully_shard(self.net.body)
            fully_shard(self.net)
        elif layout in ("hsdp", "2d"):
            mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("outer", "inner"))
            if layout == "2d":
                plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
                parallelize_module(self.net.body, mesh["inner"], plan)
            over = mesh if layout == "hsdp" else mesh["outer"]
            fully_shard(self.net.body, mesh=over)
            fully_shard(self.net, mesh=over)
        elif layout == "ddp":
            self.model = DistributedDataParallel(self.net)
        body = [p for name, p in self.net.named_parameters() if "body" in name]
        rest = [p for name, p in self.net.named_parameters() if "body" not in name and p.requires_grad]
        groups = [{"params": body, "lr": 3e-2}, {"params": rest, "lr": 1e-2}]
        self.optimizer: torch.optim.Optimizer
        if kind == "sgd":
            self.optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(groups, fused=kind == "fused")
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 30)
        self.checkpoints = Checkpointer(folder, **({} if disk is None else {"disk": disk}))
        self.num_ranks = dist.get_world_size() if layout != "plain" else 1
        self.rank = dist.get_rank() if layout != "plain" else 0
        if layout == "2d":  # two ranks share a row
            self.num_ranks, self.rank = self.num_ranks // 2, self.rank // 2

    def train(self, first: int, behind: int) -> list[float]:
        """Steps over the same rows whatever the number of ranks is; each rank has its part of them."""
        losses = []
        for step in range(first, behind):
            rows = torch.randint(0, 11, (NUM_ROWS, 7), generator=torch.Generator().manual_seed(step))
            tokens = rows[self.rank :: self.num_ranks]
            logits = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            total = loss.detach().clone()
            if dist.is_initialized():
                dist.all_reduce(total)
                total /= dist.get_world_size()
            losses.append(total.item())
        return losses

    def save(self, step: int, *, loss: float | None = None, wait: bool = True) -> Any:
        return self.checkpoints.save(
            step, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, loss=loss, wait=wait
        )

    def load(self, source: Any = None) -> Any:
        return self.checkpoints.load(
            self.checkpoints.pick() if source is None else source,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
        )

    def state(self) -> dict[str, list[float]]:
        """Every weight and moment, gathered whole, as numbers."""
        names = {id(parameter): name for name, parameter in self.net.named_parameters()}
        found = dict(self.net.state_dict())
        for parameter, state in self.optimizer.state.items():
            found |= {f"{key} of {names[id(parameter)]}": value for key, value in state.items()}
        return {name: whole(value).flatten().tolist() for name, value in found.items()}

    def marks(self) -> dict[str, str]:
        """A digest of each, and the rates: equal where every bit is."""
        marks = {name: sha256(repr(values).encode()).hexdigest()[:16] for name, values in self.state().items()}
        return marks | {"lr": repr(self.scheduler.get_last_lr()), "scheduled": repr(self.scheduler.last_epoch)}


def whole(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def save(folder: str, *, layout: str, num_steps: int, kind: str = "adamw") -> dict[str, Any]:
    """Trains, saves, and trains on."""
    training = Training(folder, layout=layout, seed=1, kind=kind)
    losses = training.train(0, num_steps)
    info = training.save(num_steps, loss=losses[-1] if losses else None)
    marks = training.marks()
    return {
        "path": str(info.path),
        "healthy": info.healthy,
        "marks": marks,
        "losses": training.train(num_steps, num_steps + 4),
        "state": training.state(),
    }


def go_on(folder: str, *, layout: str, num_steps: int, kind: str = "adamw") -> dict[str, Any]:
    """Loads into a training that began otherwise, and trains on."""
    training = Training(folder, layout=layout, seed=2, kind=kind)
    training.train(50, 51)
    resumed = training.load()
    return {
        "step": resumed.step,
        "remarks": list(resumed.remarks),
        "marks": training.marks(),
        "losses": training.train(num_steps, num_steps + 4),
        "state": training.state(),
    }


class Held(Disk):
    """A disk that begins to write when it is let go."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def write(self, fd: int, data: memoryview) -> int:
        assert self.may_go_on.wait(30)
        return super().write(fd, data)


def save_while_it_trains(folder: str) -> dict[str, Any]:
    """Saves without waiting, three times; nothing is written before a step later, and then beside the next one."""
    disk = Held()
    training = Training(folder, layout="fsdp2", seed=1, disk=disk)
    marks = {}
    training.train(0, 2)
    for step in (2, 4, 6):
        training.checkpoints.wait()
        disk.may_go_on.clear()
        training.save(step, wait=False)
        marks[str(step)] = training.marks()
        training.train(step, step + 1)
        disk.may_go_on.set()
        training.train(step + 1, step + 2)  # collectives of both kinds at once
    info = training.checkpoints.wait()
    return {"marks": marks, "last": str(info.path), "later": training.marks()}


def loaded(folder: str, *, name: str) -> dict[str, str]:
    """What a named checkpoint puts into a training on this many ranks."""
    training = Training(folder, layout="fsdp2", seed=2)
    training.load(Path(folder) / name)
    return training.marks()


def load_into_bfloat16(folder: str) -> list[str]:
    """Loads into a plain model whose weights have fewer digits; gives the remarks."""
    training = Training(folder, layout="plain", seed=2)
    training.net.bfloat16()
    return list(training.load().remarks)


def save_a_nonfinite_shard(folder: str) -> dict[str, Any]:
    """The last row of the embedding, which lies on the last rank alone, is lost after the first save."""
    training = Training(folder, layout="fsdp2", seed=1)
    training.train(0, 1)
    training.save(1)
    with torch.no_grad():
        if dist.get_rank() == dist.get_world_size() - 1:
            training.net.embed.weight.to_local()[-1, -1] = float("nan")
    info = training.save(2)
    said = ""
    try:
        training.load()
    except CheckpointError as error:
        said = str(error)
    return {
        "healthy": info.healthy,
        "because": list(info.unhealthy_because),
        "said": said,
        "last_healthy": training.checkpoints.pick(healthy=True).step,
    }


class FullOnTheLastRank(Disk):
    """A disk that is full for the last rank from its n-th write on."""

    def __init__(self, num_writes: int) -> None:
        self.num_left = num_writes

    def write(self, fd: int, data: memoryview) -> int:
        if dist.get_rank() == dist.get_world_size() - 1:
            self.num_left -= 1
            if self.num_left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def save_on_a_full_disk(folder: str, *, num_writes: int, wait: bool) -> dict[str, Any]:
    disk = FullOnTheLastRank(10**9)
    training = Training(folder, layout="fsdp2", seed=1, disk=disk)
    training.train(0, 1)
    training.save(1)
    before = training.marks()
    disk.num_left = num_writes
    training.checkpoints = Checkpointer(folder, disk=disk, on_failure="raise", run_id=training.checkpoints.run_id)
    said = ""
    try:
        training.save(2, wait=wait)
        training.checkpoints.wait()
    except CheckpointError as error:
        said = str(error)
    disk.num_left = 10**9
    return {
        "said": said,
        "unchanged": training.marks() == before,
        "losses": training.train(1, 2),
        "picked": training.checkpoints.pick().step,
        "left": sorted(path.name for path in Path(folder).iterdir()),
    }


def load_damaged(folder: str) -> dict[str, Any]:
    """Tries to load what was damaged, by name; the training must stay as it was."""
    training = Training(folder, layout="fsdp2", seed=2)
    training.train(0, 1)
    before = training.marks()
    try:
        training.load(Path(folder) / "step_2")
        said = ""
    except CheckpointError as error:
        said = str(error)
    return {"said": said, "unchanged": training.marks() == before, "picked": training.checkpoints.pick().step}


def save_twice(folder: str) -> list[str]:
    training = Training(folder, layout="fsdp2", seed=1)
    for step in (1, 2):
        training.train(step - 1, step)
        training.save(step)
    training.train(2, 3)
    training.save(2)  # the run goes over this step again
    return sorted(training.marks())
