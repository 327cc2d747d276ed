"""What each of two real ranks does for `test_sharded_state.py`: a model of awkward shapes under `fully_shard`."""

import errno
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from trimtab.errors import CheckpointError, UsageError
from trimtab.resume.disk_changes import DISK, Disk
from trimtab.resume.manifest import FileEntry
from trimtab.resume.writing import Draft
from trimtab.torch import loaded_state, sharded_state
from trimtab.torch.placement import is_sharded, placed
from trimtab.torch.sharded_writing import write_pieces


class Awkward(nn.Module):
    """Rows that two ranks cannot share evenly, a single row, tied weights, a frozen weight, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.body = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 5))
        self.single = nn.Parameter(torch.randn(1, 5))
        self.frozen = nn.Parameter(torch.randn(5, 5), requires_grad=False)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.num_seen += tokens.numel()
        hidden = self.embed(tokens)
        return self.head(self.body(hidden) * self.single + hidden @ self.frozen)


def built(*, seed: int, dtype: torch.dtype = torch.float64, shard: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    model = Awkward().to(dtype)
    if shard:
        fully_shard(model.body)
        fully_shard(model)
    return model


def optimizer_of(model: nn.Module, kind: str = "adamw") -> torch.optim.Optimizer:
    """Two groups of different rates."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in named if "body" in name], "lr": 3e-2},
        {"params": [parameter for name, parameter in named if "body" not in name], "lr": 1e-2},
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
    return torch.optim.AdamW(groups, fused=kind == "fused", weight_decay=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, first: int, behind: int) -> list[float]:
    """Steps on the same rows on every rank, so that any number of ranks trains alike."""
    losses = []
    for step in range(first, behind):
        tokens = torch.randint(0, 7, (4, 6), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def mark(tensor: torch.Tensor) -> str:
    values = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {sha256(values).hexdigest()[:16]}"


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A digest of every weight, moment and rate, gathered whole: equal where every bit is."""
    found = {name: whole(value.detach()) for name, value in model.state_dict().items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            found[f"{key} of {names[id(parameter)]}"] = whole(value)
    marks = {name: mark(value) if isinstance(value, torch.Tensor) else repr(value) for name, value in found.items()}
    return marks | {f"lr {number}": repr(group["lr"]) for number, group in enumerate(optimizer.param_groups)}


def write(captured: Any, folder: str, *, disk: Disk = DISK, group: Any = None) -> tuple[FileEntry, ...]:
    """Writes into a folder that is the draft of all ranks; gives this rank's files."""
    draft = Draft.join(folder, disk=disk)
    try:
        write_pieces(captured, draft, "sharded", group=group)
        return draft.entries
    finally:
        draft.abandon()


def save(folder: str, *, num_steps: int, kind: str = "adamw", dtype: str = "float64") -> dict[str, Any]:
    model = built(seed=1, dtype=getattr(torch, dtype), shard=True)
    optimizer = optimizer_of(model, kind)
    train(model, optimizer, first=0, behind=num_steps)
    before = fingerprint(model, optimizer)
    captured = sharded_state.capture(model, optimizer, copy=False)
    entries = write(captured, folder)
    return {
        "entries": [[entry.path, entry.size_bytes, entry.crc32] for entry in entries],
        "before": before,
        "after": fingerprint(model, optimizer),
        "losses": train(model, optimizer, first=num_steps, behind=num_steps + 3),
    }


def load(
    folder: str, *, num_steps: int, kind: str = "adamw", dtype: str = "float64", shard: bool = True
) -> dict[str, Any]:
    model = built(seed=2, dtype=getattr(torch, dtype), shard=shard)
    optimizer = optimizer_of(model, kind)
    train(model, optimizer, first=90, behind=91)  # what was there before must not matter
    loaded_state.read(Path(folder) / "sharded", model=model, optimizer=optimizer).put()
    return {
        "after": fingerprint(model, optimizer),
        "losses": train(model, optimizer, first=num_steps, behind=num_steps + 3),
    }


def load_whole(path: str, *, num_steps: int) -> dict[str, Any]:
    saved = torch.load(path, weights_only=True)
    model = built(seed=2, shard=True)
    optimizer = optimizer_of(model)
    loaded_state.part_of_whole(saved["model"], saved["optimizer"], model=model, optimizer=optimizer).put()
    return {
        "after": fingerprint(model, optimizer),
        "losses": train(model, optimizer, first=num_steps, behind=num_steps + 3),
    }


def save_while_it_trains(folder: str) -> dict[str, Any]:
    """Captures, trains on in collectives of its own, and lets a thread write meanwhile."""
    model = built(seed=1, shard=True)
    optimizer = optimizer_of(model)
    train(model, optimizer, first=0, behind=2)
    before = fingerprint(model, optimizer)
    own_group = dist.new_group(backend="gloo")
    captured = sharded_state.capture(model, optimizer, copy=True)
    train(model, optimizer, first=2, behind=4)
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(write, captured, folder, group=own_group)
        train(model, optimizer, first=4, behind=12)
        written.result()
    return {"before": before, "later": fingerprint(model, optimizer)}


class FullOnOneRank(Disk):
    """A disk that is full for rank 1, from its first write on."""

    def write(self, fd: int, data: memoryview) -> int:
        if dist.get_rank() == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


def outcome(captured: Any, folder: str, disk: Disk = DISK) -> str:
    """What this rank is told of a save."""
    try:
        write(captured, folder, disk=disk)
    except (OSError, CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def save_where_one_disk_is_full(folder: str) -> str:
    model = built(seed=1, shard=True)
    captured = sharded_state.capture(model, optimizer_of(model), copy=False)
    return outcome(captured, folder, FullOnOneRank())


def save_other_names_on_one_rank(folder: str) -> str:
    model: nn.Module = built(seed=1, shard=True)
    if dist.get_rank() == 1:
        model.register_buffer("only_here", torch.zeros(2))
    return outcome(sharded_state.capture(model, optimizer_of(model), copy=False), folder)


class OwnParts(torch.optim.Optimizer):
    """An optimizer that knows of DTensors, and keeps a plain tensor of each rank's part."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["own"] = parameter.detach().to_local().clone()


def save_plain_parts_of_shards(folder: str) -> str:
    model = built(seed=1, shard=True)
    optimizer = OwnParts(model.parameters())
    optimizer.step()
    try:
        sharded_state.capture(model, optimizer, copy=False)
    except CheckpointError as error:
        return str(error)
    return ""


def save_a_buffer_of_its_own(folder: str) -> None:
    model = built(seed=1, shard=True)
    model.num_seen.fill_(100 + dist.get_rank())
    write(sharded_state.capture(model, optimizer_of(model), copy=False), folder)


def is_sharded_at_any_time() -> list[bool]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    found = [is_sharded(model)]
    fully_shard(model, reshard_after_forward=False)
    found.append(is_sharded(model))
    with torch.no_grad():
        model(torch.zeros(1, 4))  # from here on it shows its parameters whole
    found.extend((any(isinstance(p, DTensor) for p in model.parameters()), is_sharded(model)))
    return found


def save_after_a_forward(folder: str) -> dict[str, Any]:
    """An evaluation comes before the save, and leaves the parameters whole."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, dtype=torch.float64)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 4, dtype=torch.float64))
    write(sharded_state.capture(model, optimizer, copy=False), folder)
    return fingerprint(model, optimizer)


def parts_of_whole() -> list[list[Any]]:
    """What `placed` says of a tensor of three rows, and of a single one."""
    mesh = init_device_mesh("cpu", (2,))
    found = []
    for rows in (3, 1):
        whole_tensor = torch.arange(rows * 2.0).reshape(rows, 2)
        part = placed(distribute_tensor(whole_tensor, mesh, [Shard(0)]))
        assert torch.equal(part.part_of(whole_tensor), part.local)
        found.append([part.local.tolist(), list(part.shape), list(part.offsets)])
    return found


def sharded_by_fsdp1() -> str:
    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    try:
        is_sharded(model)
    except UsageError as error:
        return str(error)
    return ""
