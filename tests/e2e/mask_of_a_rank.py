"""What one of two ranks does for test_mask_two_processes.py: one window with a fault, and the same without it."""

import logging
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trimtab.errors import UsageError
from trimtab.torch.mask import GradientMask
from trimtab.torch.statistics import RunningStatistics

NUM_MICROS = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Block(nn.Module):
    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6), nn.LayerNorm(6))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x))


class Net(nn.Module):
    """Has tied weights, a frozen parameter, and one that no forward uses."""

    def __init__(self, *, checkpointed: bool = False, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(Block(checkpointed=checkpointed) for _ in range(2))
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks[0].inner[0].bias.requires_grad_(False)
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, tokens: torch.Tensor, poison: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        if poison is not None:
            x = x + poison.to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def built(how: str, options: dict[str, Any]) -> nn.Module:
    net = Net(checkpointed=options.pop("checkpointed", False), unused=options.get("find_unused_parameters", False))
    if how == "ddp":
        return DistributedDataParallel(net, **options)
    precision = options.pop("precision", None)
    if precision is not None:
        options["mp_policy"] = MixedPrecisionPolicy(*(DTYPES[name] for name in precision))
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def synchronised(model: nn.Module, *, now: bool) -> Any:
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if now else model.no_sync()
    model.set_requires_gradient_sync(now)
    return nullcontext()


def micro_batch_loss(model: nn.Module, index: int, *, fault: str | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * index + dist.get_rank())
    tokens = torch.randint(9, (2, 5), generator=generator)
    poison = torch.zeros(2, 5, 6)
    if fault == "nan activation":
        poison[0, 1, 2] = math.nan
    logits = model(tokens, poison)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(1).flatten())
    if fault == "finite spike":
        return loss * 1e6
    if fault == "infinite derivative":
        return loss + (logits.float() * 0.0).square().sum().sqrt()
    return loss


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [
        None if p.grad is None else (p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad).clone()
        for p in model.parameters()
    ]


def window(model: nn.Module, mask: GradientMask | None, *, fault: str, place: int, each: bool, decide: str) -> Any:
    """The gradients of a window whose micro-batch at `place` has the fault, on rank 1 alone.

    Without a mask it is the oracle's: that micro-batch's loss is a finite one times zero, and nothing else differs.
    """
    model.zero_grad()
    for index in range(NUM_MICROS):
        at_fault = index == place
        with synchronised(model, now=each or index == NUM_MICROS - 1):
            if mask is None:
                loss = micro_batch_loss(model, index, fault=None) * (0.0 if at_fault else 1.0)
            else:
                loss = micro_batch_loss(model, index, fault=fault if at_fault and dist.get_rank() == 1 else None)
                mask.hook()
                loss = mask.bind(loss, torch.tensor(not at_fault) if decide == "device" else not at_fault)
            loss.backward()
    return gradients(model)


def compared(how: str, options: dict[str, Any], each: bool, faults: list[str], decide: str = "device") -> list[str]:
    """Which cases differ from the oracle in a bit; a model serves all of them, as it would in a run."""
    masked, oracle = built(how, dict(options)), built(how, dict(options))
    mask = GradientMask(masked, parameters=masked.parameters)
    differing = []
    for fault in faults:
        for place in range(NUM_MICROS):
            case = dict(fault=fault, place=place, each=each, decide=decide)
            found, expected = window(masked, mask, **case), window(oracle, None, **case)
            same = all(
                (a is None) == (b is None) and (a is None or torch.equal(a, b))
                for a, b in zip(found, expected, strict=True)
            )
            if not same or all(gradient is None or not gradient.any() for gradient in expected):
                differing.append(f"{fault}, micro-batch {place}")
    return differing


def kept_is_untouched(how: str, options: dict[str, Any]) -> bool:
    """Whether a window without a fault has the bits that it has without a mask."""
    masked, plain = built(how, dict(options)), built(how, dict(options))
    mask = GradientMask(masked, parameters=masked.parameters)
    case = dict(fault="finite spike", place=-1, each=False, decide="device")
    found, expected = window(masked, mask, **case), window(plain, None, **case)
    return all(
        (a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(found, expected, strict=True)
    )


def all_zero(model: nn.Module, mask: GradientMask) -> bool:
    """Whether a skipped micro-batch with NaN activations leaves nothing but zeros."""
    model.zero_grad()
    loss = micro_batch_loss(model, 0, fault="nan activation")
    mask.hook()
    mask.bind(loss, torch.tensor(False)).backward()
    found = [gradient for gradient in gradients(model) if gradient is not None]
    return len(found) > 0 and all(gradient.eq(0).all() for gradient in found)


def late(what: str) -> bool:
    """Whether a mask that was there before something was done to the model is exact afterwards."""
    if what == "sharded":
        net = Net()
        mask = GradientMask(net, parameters=net.parameters)
        mask.hook()
        for module in (*net.blocks, net):
            fully_shard(module)
        return all_zero(net, mask)
    model = built("fsdp2", {})
    mask = GradientMask(model, parameters=model.parameters)
    first = all_zero(model, mask)
    if what == "unfrozen":
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        frozen = model.blocks[0].inner[0].bias
        return first and all_zero(model, mask) and frozen.grad is not None
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mask.open()
    model.load_state_dict(state, assign=what == "assigned")
    return first and all_zero(model, mask)


def after_an_evaluation() -> bool:
    """A root that was only called stays gathered: its shards are not what the model shows."""
    model = built("fsdp2", {})
    parameters = list(model.parameters())  # as an optimizer holds them
    with torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.long))
    mask = GradientMask(model, parameters=lambda: [*model.parameters(), *parameters])
    return all_zero(model, mask)


def num_gathers_of_two_windows() -> list[int]:
    """How often the mask itself gathers a module, in the first window and in the second."""
    model = built("fsdp2", {})
    mask = GradientMask(model, parameters=model.parameters)
    calls = []

    def counted(module: nn.Module) -> None:
        calls.append(module)
        type(module).unshard(module)

    for module in model.modules():
        if hasattr(module, "unshard"):
            module.unshard = partial(counted, module)
    counts = []
    for _ in range(2):
        calls.clear()
        all_zero(model, mask)
        counts.append(len(calls))
    return counts


def running_statistics(skipped: list[int]) -> dict[str, Any]:
    """The buffers after a window whose micro-batches in `skipped` are skipped, and what was said meanwhile."""
    torch.manual_seed(0)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trimtab").addHandler(handler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    statistics = RunningStatistics(model)
    for index in range(NUM_MICROS):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * index + dist.get_rank()))
        with synchronised(model, now=index == NUM_MICROS - 1):
            loss = model(x * math.nan if index in skipped else x).sum()
            statistics.keep_or_restore(torch.tensor(index not in skipped))
            loss.backward()
    statistics.settle()
    logging.getLogger("trimtab").removeHandler(handler)
    return {"buffers": [buffer.tolist() for buffer in model.buffers()], "said": said}


def running_statistics_without(left_out: list[int]) -> list[Any]:
    """The oracle's buffers: those micro-batches are never shown to the model."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    for index in range(NUM_MICROS):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * index + dist.get_rank()))
        if index not in left_out:
            with synchronised(model, now=index == NUM_MICROS - 1):
                model(x).sum().backward()
    return [buffer.tolist() for buffer in model.buffers()]


def refused(how: str) -> str:
    """What the error says."""
    mask = None
    if how == "meta":
        with torch.device("meta"):
            net = fully_shard(nn.Linear(4, 4))
    elif how == "fsdp1":
        net = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    elif how == "fsdp1 around":
        net = nn.Linear(4, 4)
        mask = GradientMask(net, parameters=net.parameters)
        mask.hook()
        FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        net = parallelize_module(
            nn.Sequential(nn.Linear(4, 4)), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()}
        )
    try:
        (mask or GradientMask(net, parameters=net.parameters)).hook()
    except UsageError as error:
        return str(error)
    return ""
