"""What each of two real ranks does for `test_router_watch_two_ranks.py`."""

from dataclasses import asdict
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.moe import RouterWatch
from trimtab.torch.router import reading
from trimtab.torch.router.sums import LayerSums


class Gate(nn.Module):
    top_k = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> Any:
        logits = x @ self.weight.T
        top = logits.softmax(-1).topk(self.top_k)
        return logits, top.values, top.indices


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.body = nn.Linear(8, 8)
        self.experts = nn.Parameter(torch.randn(4, 3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) * self.gate(x)[1].sum(-1, keepdim=True) + self.experts.sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def gates_of(model: nn.Module) -> list[nn.Module]:
    return [block.gate for block in model.blocks]


def experts_of(model: nn.Module) -> list[torch.Tensor]:
    return [block.experts for block in model.blocks]


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of five tokens, of which a rank has as many real ones as it and the step say."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, 4 - rank :] = 0
    return torch.randn(2, 5, 8, generator=generator), mask


def weights_hash(model: nn.Module) -> str:
    return sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()


def train(wrap: str, watched: bool) -> dict[str, Any]:
    """Two windows of two micro-batches; the report of each, and the weights at the end."""
    rank = dist.get_rank()
    model = Model()
    wrapped: nn.Module = model
    if wrap == "ddp":
        wrapped = DistributedDataParallel(model)
    elif wrap == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        wrapped = fully_shard(model)
    settings = {"routers": gates_of, "num_populations": 2, "experts": experts_of}
    watch = RouterWatch(wrapped, **settings) if watched else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reports = []
    for step in (1, 2):
        for micro in (0, 1):
            x, mask = batch_of(rank, 2 * step + micro)
            wrapped(x, attention_mask=mask).backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch is not None:
            reports.append(asdict(watch.report(step)))
    return {"reports": reports, "weights": weights_hash(model) if wrap != "fsdp2" else ""}


def alone(steps: list[int]) -> dict[str, Any]:
    """The figures of both ranks' micro-batches in one process, on the weights that training begins with."""
    model = Model()
    one = dist.new_group([0])  # every rank takes part in making it
    two = dist.new_group([1])
    watch = RouterWatch(model, routers=gates_of, process_group=one if dist.get_rank() == 0 else two)
    for rank in (0, 1):
        for step in steps:
            x, mask = batch_of(rank, step)
            model(x, attention_mask=mask)
    return asdict(watch.report(1))


def one_rank_is_different(how: str) -> dict[str, Any]:
    """A report where rank 1 calls only the second router, in another order, or has a NaN."""
    model = Model()
    watch = RouterWatch(model, routers=())
    logits = torch.tensor([[3.0, 1.0, 0.0, 0.0]])
    chosen = torch.tensor([[0]])
    names = ["a", "b"]
    if dist.get_rank() == 1:
        names = {"fewer": ["b"], "turned": ["b", "a"], "nan": ["a", "b"]}[how]
        if how == "nan":
            logits = logits * float("nan")
    for name in names:
        watch.tap(logits, layer=name, indices=chosen)
    first = asdict(watch.report(1))
    watch.tap(logits, layer="late", indices=chosen)
    second = asdict(watch.report(2))
    return {"first": repr(first), "layers": [layer["name"] for layer in second["layers"]], "notes": second["notes"]} | {
        "counts": {layer["name"]: layer["counts"] for layer in first["layers"]},
        "z": {layer["name"]: repr(layer["z"]) for layer in first["layers"]},
    }


def _out_of_memory(*given: Any, **named: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def one_rank_fails(what: str, report: int) -> dict[str, Any]:
    """Three reports, each after a forward and a sum of gradients; in one of them something fails on one rank."""
    rank = dist.get_rank()
    model = Model()
    wrapped = DistributedDataParallel(model)
    is_broken = False

    def experts(model: nn.Module) -> list[torch.Tensor]:
        if is_broken and what == "experts":
            raise KeyError("experts")
        return experts_of(model)

    watch = RouterWatch(wrapped, routers=gates_of, num_populations=2, experts=experts)
    add, taken, numbers = LayerSums.add, LayerSums.taken, reading._numbers
    reports = []
    for step in (1, 2, 3):
        is_broken = step == report and rank == (0 if what == "experts" else 1)
        if is_broken and what == "add":
            LayerSums.add = _out_of_memory
        if is_broken and what == "taken":
            LayerSums.taken = _out_of_memory
        if is_broken and what == "packed":
            reading._numbers = _out_of_memory
        x, mask = batch_of(rank, step)
        wrapped(x, attention_mask=mask).backward()
        reports.append(watch.report(step))
        LayerSums.add, LayerSums.taken, reading._numbers = add, taken, numbers
    return {
        "tokens": [[layer.num_tokens for layer in one.layers] for one in reports],
        "expected": [one.expected_tokens for one in reports],
        "cosines": [[layer.population_cosine is not None for layer in one.layers] for one in reports],
        "notes": [list(one.notes) for one in reports],
        "weights": weights_hash(model),
    }


def ranks_differ(how: str) -> dict[str, Any]:
    """Two reports of ranks whose routers have other numbers of experts or another k, or which collect elsewhere."""
    rank = dist.get_rank()
    watch = RouterWatch(Model(), routers=())
    first_step = 1 + rank if how == "steps" else 1
    for step in (first_step, first_step + 1):
        logits = torch.arange(12.0).view(2, 6)[:, : 4 + 2 * rank if how == "experts" else 4]
        if how != "silent first" or step > 1:
            watch.tap(logits, layer="a", indices=logits.topk(2 + rank if how == "k" else 2).indices)
        last = watch.report(step)
    return asdict(last)


def inner_module_called() -> dict[str, Any]:
    """The module inside of DDP called by itself, with a mask, between two calls of the wrapper."""
    model = Model()
    wrapped = DistributedDataParallel(model)
    watch = RouterWatch(wrapped, routers=gates_of)
    x, mask = batch_of(0, 1)
    for called in (wrapped, wrapped.module, wrapped):
        called(x, attention_mask=mask).backward()
    return asdict(watch.report(1))
