"""What each rank does for `test_skip_matrix_ranks.py`: windows of hand-worked losses through a wrapper and `Run`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab import GuardConfig, Run


class OneWeight(nn.Module):
    """Makes any loss its own derivative: its value is what comes in, and so is what each of two weights feels.

    They go the same way; sharded, each rank holds one.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=dtype))

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        return losses * (1.0 + (self.weight - self.weight.detach()).sum())


def _wrapped(net: nn.Module, host: str) -> nn.Module:
    return DistributedDataParallel(net) if host == "ddp" else fully_shard(net)


def _here(parameter: torch.Tensor) -> float:
    """The first weight on this rank."""
    whole = parameter.detach()
    return float((whole.to_local() if isinstance(whole, DTensor) else whole)[0])


def train(
    windows: list[list[list[list[float]]]],
    *,
    host: str,
    decide: str,
    accumulation: int = 1,
    normalize: str = "micro",
    guarded: bool = True,
    dtype: str = "float64",
    scaled: bool = False,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Trains `windows`, each a list of micro-batches: for every rank its mean loss and its number of tokens.

    Returns:
        What became of each window: `moved` is the gradient that was applied, for the learning rate is 1.
    """
    kind = getattr(torch, dtype)
    net = OneWeight(kind)
    model = _wrapped(net, host)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    guard = GuardConfig(**{"multiplier": 2.0, "decide": decide, **settings}) if guarded else None
    told = []
    with Run(
        None,
        record=False,
        model=model,
        optimizer=optimizer,
        accumulation=accumulation,
        normalize=normalize,
        guard=guard,
    ) as run:
        for window in windows:
            before = _here(net.weight)
            for micro in window:
                loss, num_tokens = micro[dist.get_rank()]
                losses = model(torch.tensor([loss], dtype=kind))
                total = run.micro_batch(losses, per="sample", tokens=[int(num_tokens)], rows=[0])
                (total if scaler is None else scaler.scale(total)).backward()
            outcome = run.step(scaler)
            told.append(
                {
                    "reason": outcome.reason,
                    "num_skipped": outcome.num_skipped_micros,
                    "moved": before - _here(net.weight),
                    "loss": outcome.loss,
                    "scale": scaler.get_scale() if scaler is not None else None,
                }
            )
    return told


def loss_that_saves_its_output(*, decide: str) -> dict[str, float]:
    """A loss of 3 on rank 0 and of 6 on rank 1, whose derivative is its own value as it stands in memory."""
    net = nn.Linear(1, 1, bias=False)
    value = 3.0 * (dist.get_rank() + 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[value]]).log())
    guard = GuardConfig(multiplier=2.0, decide=decide)
    with Run(None, record=False, model=net, guard=guard) as run:
        losses = net(torch.ones(1, 1)).exp().flatten()
        loss = run.micro_batch(losses, per="sample", rows=[0])
        loss.backward()
    assert net.weight.grad is not None
    return {"losses": float(losses.detach()), "loss": float(loss.detach()), "gradient": float(net.weight.grad)}


def all_labels_ignored_on_rank_1(*, host: str, decide: str) -> dict[str, Any]:
    """Cross entropy of labels -100 only, on activations that are not finite, beside a healthy rank."""
    torch.manual_seed(0)
    net = nn.Linear(3, 5, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([1, 4])
    start = {name: value.detach().clone() for name, value in net.named_parameters()}
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    healthy = nn.functional.cross_entropy(x @ leaves["weight"].T + leaves["bias"], labels)
    expected = torch.autograd.grad(healthy / 2, list(leaves.values()))  # a mean over two ranks
    model = _wrapped(net, host)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if dist.get_rank() == 1:
        x, labels = x * float("nan"), torch.full_like(labels, -100)
    with Run(
        None, record=False, model=model, optimizer=optimizer, guard=GuardConfig(multiplier=2.0, decide=decide)
    ) as run:
        losses = nn.functional.cross_entropy(model(x), labels, reduction="none")
        loss = run.micro_batch(losses, per="token", mask=labels != -100, rows=[0, 1])
        loss.backward()
        outcome = run.step()
    moved = [start[name] - _whole(value) for name, value in net.named_parameters()]
    gap = max(float((ours - gradient).abs().max()) for ours, gradient in zip(moved, expected, strict=True))
    return {"reason": outcome.reason, "loss": float(loss.detach()), "gap": gap}


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    whole = parameter.detach()
    return whole.full_tensor() if isinstance(whole, DTensor) else whole
