"""What each of two real ranks does for `test_run_two_ranks.py`: micro-batches under DDP, its own on each rank."""

import logging
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import GuardConfig, PerTokenLossGuard, Run


class Net(nn.Module):
    """Losses that are its inputs, with derivatives `x` by `w`, and terms of which `v` is the only parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.v = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.seen = nn.BatchNorm1d(1, affine=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor, term: float) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen(x.detach()[:, None])
        return x * (1 + self.w - self.w.detach()), term * self.v


class Training:
    """A run of one rank, whose steps are of size 1."""

    def __init__(self, *, guard: GuardConfig | None = None, weight_decay: float = 0.0, **settings: Any) -> None:
        self.net = Net()
        self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, weight_decay=weight_decay)
        self.run = Run(None, record=False, model=self.model, optimizer=self.optimizer, guard=guard, **settings)

    def micro_batch(
        self, value: float, num_tokens: int = 4, *, term: float | None = None, supervised: bool = True
    ) -> torch.Tensor:
        """Runs one micro-batch forward and backward; gives the loss that `run` returned."""
        losses, terms = self.model(torch.full((num_tokens,), value, dtype=torch.float64), term or 0.0)
        loss = self.run.micro_batch(
            losses,
            per="token",
            rows=[dist.get_rank()] * num_tokens,
            mask=torch.full((num_tokens,), supervised),
            aux=terms if term is not None else None,
        )
        loss.backward()
        return loss


class Lines(logging.Handler):
    """What Trimtab says on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("trimtab").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("trimtab").removeHandler(self)


def way_of_uneven_tokens(decide: str | None) -> float:
    """How far `w` goes by 10 tokens of 4.0 on rank 0 and 30 of 2.0 on rank 1."""
    guard = GuardConfig(multiplier=9.0, decide=decide) if decide is not None else None  # type: ignore[arg-type]
    training = Training(guard=guard, normalize="window")
    training.micro_batch(*[(4.0, 10), (2.0, 30)][dist.get_rank()])
    training.run.step()
    return -training.net.w.item()


def way_of_an_announced_term() -> float:
    """How far `v` goes by a term of 6 v on each rank, in a window of 20 tokens over both."""
    training = Training(normalize="window")
    training.run.begin_window(20)
    training.micro_batch(1.0, 10, term=6.0)
    training.run.step()
    return 1 - training.net.v.item()


def after_a_rank_without_tokens(decide: str, term: float | None) -> dict[str, Any]:
    """What a step leaves whose only micro-batch has no supervised token, and the `term`, on rank 1; 6 v on rank 0."""
    training = Training(guard=GuardConfig(multiplier=9.0, decide=decide))  # type: ignore[arg-type]
    if dist.get_rank() == 0:
        training.micro_batch(1.0, term=6.0)
    else:
        # Where nothing counts, the derivatives are 0 x NaN.
        counts = term is not None and math.isfinite(term)
        training.micro_batch(1.0 if counts else math.nan, term=term, supervised=False)
    outcome = training.run.step()
    net = training.net
    return {
        "reason": outcome.reason,
        "w": -net.w.item(),
        "v": 1 - net.v.item(),
        "num_batches": net.seen.num_batches_tracked.item(),
    }


def batches_seen_beside_a_guard() -> int:
    """Batches in the running statistics after `guard(loss_sum, num_tokens)` without a token on rank 1."""
    net = Net()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    guard = PerTokenLossGuard(multiplier=9.0, model=model)
    num_tokens = 4 if dist.get_rank() == 0 else 0
    guard(model(torch.ones(4, dtype=torch.float64), 0.0)[0].sum() * num_tokens, num_tokens).backward()
    return int(net.seen.num_batches_tracked.item())


def gradients_of_what_a_skip_alone_reached() -> list[float | None]:
    """The gradients of `w` and `v` that the optimizer finds; only the first micro-batch, a spike, has `v` in it."""
    training = Training(guard=GuardConfig(multiplier=3.0), accumulation=2)
    for _ in range(2):
        training.micro_batch(1.0), training.micro_batch(1.0)
        training.run.step()
    found: list[float | None] = []
    parameters = list(training.net.parameters())
    training.optimizer.register_step_pre_hook(
        lambda *_: found.extend(None if p.grad is None else p.grad.item() for p in parameters)
    )
    training.micro_batch(99.0, term=6.0), training.micro_batch(1.0)
    training.run.step()
    return found


def said_of_a_lockup(decide: str) -> list[str]:
    """What a rank says of five spikes in a row where two may be skipped."""
    training = Training(guard=GuardConfig(multiplier=3.0, max_consecutive_skips=2, decide=decide))  # type: ignore[arg-type]
    with Lines() as lines:
        for value in (1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0):
            training.micro_batch(value)
            training.run.step()
        training.run.close()
    return lines
