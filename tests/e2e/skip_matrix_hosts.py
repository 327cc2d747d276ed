"""What the matrix of skips is made of: a small net, its data, the faults, and each host that wraps the net.

Used by the worker of `test_skip_matrix.py` and by its oracles; nothing here knows Trimtab.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

ACCUMULATION = 3
SHAPE = (2, 4)
NUM_TOKENS = 8
"""Of a micro-batch; a power of two, so that it does not matter in which order one divides by it and by others."""
MAX_GRAD_NORM = 0.5
LR = 0.01


class Batch(NamedTuple):
    """One micro-batch of one rank: B = 2 sequences of T = 4 tokens."""

    x: torch.Tensor
    target: torch.Tensor
    mask: torch.Tensor
    slack: torch.Tensor
    scale: torch.Tensor
    branch: int


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6, dtype=dtype)
        self.inner = nn.Linear(6, 6, dtype=dtype)
        self.outer = nn.Linear(6, 6, dtype=dtype)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.outer(torch.tanh(self.inner(self.norm(h))))


class Net(nn.Module):
    """A residual net; with branches, a micro-batch goes through one of two, so that DDP finds unused parameters."""

    def __init__(self, dtype: torch.dtype, *, has_branches: bool = False, checkpoints: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entry = nn.Linear(4, 6, dtype=dtype)
        self.blocks = nn.ModuleList(Block(dtype) for _ in range(2))
        self.branches = nn.ModuleList(nn.Linear(6, 6, dtype=dtype) for _ in range(2 if has_branches else 0))
        self.head = nn.Linear(6, 1, dtype=dtype)
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        h = torch.tanh(self.entry(x))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpoints else block(h)
        if self.branches:
            h = h + self.branches[branch](h)
        return self.head(h).sum(-1)


def token_losses(y: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(B, T) losses. The root adds sqrt(slack) and, where slack is 0, an infinite derivative."""
    y = y.to(batch.target.dtype)
    return ((y - batch.target) ** 2 + torch.sqrt(y - y.detach() + batch.slack)) * batch.scale


# Faults.

Fault = Literal[
    "finite spike", "spike with inf derivative", "NaN activation", "NaN loss", "no tokens", "inf derivative"
]
SKIPPED: tuple[Fault, ...] = ("finite spike", "spike with inf derivative", "NaN activation", "NaN loss")
FAULTS: tuple[Fault, ...] = (*SKIPPED, "no tokens", "inf derivative")
PLACES = {"first": (0,), "middle": (1,), "last": (2,), "all": (0, 1, 2)}


class Case(NamedTuple):
    """A fault, the micro-batches of a window that have it, and the ranks on which they do."""

    fault: Fault
    place: str
    ranks: tuple[int, ...]

    def hits(self, micro: int, rank: int) -> bool:
        return micro in PLACES[self.place] and rank in self.ranks

    def is_left_out(self, micro: int, rank: int) -> bool:
        """Whether the micro-batch adds nothing to the gradient on this rank: a skip is one on every rank."""
        if self.fault == "inf derivative":
            return False
        return micro in PLACES[self.place] and (self.fault != "no tokens" or rank in self.ranks)

    def reason(self, world_size: int) -> str:
        if self.fault == "inf derivative":
            return "nonfinite_norm"
        if self.place == "all" and self.fault in SKIPPED:
            return "all_skipped"
        if self.place == "all" and len(self.ranks) == world_size:
            return "no_tokens"
        return "stepped"

    @property
    def num_skipped_micros(self) -> int:
        return len(PLACES[self.place]) if self.fault in SKIPPED else 0


@lru_cache(maxsize=4096)
def clean_batch(window: int, micro: int, rank: int, dtype: torch.dtype) -> Batch:
    dice = torch.Generator().manual_seed(100 * window + 10 * micro + rank)
    x = torch.randn(*SHAPE, 4, generator=dice, dtype=torch.float64).to(dtype)
    target = torch.randn(*SHAPE, generator=dice, dtype=torch.float64).to(dtype)
    full = torch.ones(SHAPE, dtype=dtype)
    return Batch(x, target, full > 0, full, torch.ones((), dtype=dtype), branch=(micro + rank) % 2)


def spoiled(batch: Batch, fault: Fault) -> Batch:
    """The micro-batch with a fault in its second row's third token; `no tokens` is all of it."""

    def at_one_token(values: torch.Tensor, value: float) -> torch.Tensor:
        changed = values.clone()
        changed[1, 2] = value
        return changed

    if fault == "finite spike":
        return batch._replace(target=at_one_token(batch.target, 100.0))
    if fault == "spike with inf derivative":
        return batch._replace(target=at_one_token(batch.target, 100.0), slack=at_one_token(batch.slack, 0.0))
    if fault == "inf derivative":
        return batch._replace(slack=at_one_token(batch.slack, 0.0))
    if fault == "NaN activation":
        return batch._replace(x=at_one_token(batch.x, float("nan")))
    if fault == "NaN loss":
        return batch._replace(scale=batch.scale * float("nan"))
    return batch._replace(mask=torch.zeros_like(batch.mask))


# Hosts.


@dataclass(frozen=True)
class Host:
    """A way to train the net: how it is wrapped, and what is done around a micro-batch."""

    kind: Literal["plain", "ddp", "fsdp2"]
    sync_each: bool = False
    find_unused: bool = False
    bucket_view: bool = False
    checkpoints: bool = False
    param_dtype: torch.dtype | None = None
    dtype: torch.dtype = torch.float64

    def net(self) -> Net:
        return Net(self.dtype, has_branches=self.find_unused, checkpoints=self.checkpoints)

    def wrapped(self, net: Net) -> nn.Module:
        if self.kind == "plain":
            return net
        if self.kind == "ddp":
            return DistributedDataParallel(
                net, find_unused_parameters=self.find_unused, gradient_as_bucket_view=self.bucket_view
            )
        policy = MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=torch.float32)
        options: dict[str, Any] = {} if self.param_dtype is None else {"mp_policy": policy}
        for block in net.blocks:
            fully_shard(block, **options)
        return fully_shard(net, **options)

    def around(self, model: nn.Module, micro: int) -> contextlib.AbstractContextManager[None]:
        """What stands around forward and backward of a micro-batch."""
        reduces = self.sync_each or micro == ACCUMULATION - 1
        if self.kind == "ddp" and not reduces:
            return model.no_sync()
        if self.kind == "fsdp2":
            model.set_requires_gradient_sync(reduces)
        return contextlib.nullcontext()


HOSTS = {
    "plain": Host("plain"),
    "DDP no_sync": Host("ddp"),
    "DDP sync each": Host("ddp", sync_each=True),
    "DDP find_unused": Host("ddp", find_unused=True),
    "DDP bucket view": Host("ddp", bucket_view=True),
    "FSDP2 sync last": Host("fsdp2"),
    "FSDP2 sync each": Host("fsdp2", sync_each=True),
    "FSDP2 checkpointing": Host("fsdp2", checkpoints=True),
    "FSDP2 bf16": Host("fsdp2", param_dtype=torch.bfloat16, dtype=torch.float32),
}


def host_of(name: str, *, dtype: str | None = None) -> Host:
    host = HOSTS[name]
    return host if dtype is None else replace(host, dtype=getattr(torch, dtype))


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=LR, weight_decay=0.1, fused=True),
    "foreach AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=LR, weight_decay=0.1, foreach=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=LR, weight_decay=0.1, momentum=0.9),
}


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Falls a little with every window, so that a window which the schedule missed shows in all that follow."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda window: 1.0 / (1.0 + 0.01 * window))


# What is compared.


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters, moments and step counts of this rank, by name."""
    found = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        found[name] = local(parameter.detach())
        for key, value in optimizer.state[parameter].items() if parameter in optimizer.state else ():
            if value is not None:
                found[f"{name} {key}"] = local(torch.as_tensor(value))
    return found


def rank_and_world(host: Host) -> tuple[int, int]:
    """The ranks that train together: under "plain" each process is alone, with the data of its own rank."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), 1 if host.kind == "plain" else dist.get_world_size()
