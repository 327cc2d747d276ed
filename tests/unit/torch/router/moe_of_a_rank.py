"""What each of two ranks does for `test_moe_global_batch.py`: it trains small routers on its part of the tokens."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import moe

NUM_TOKENS, WIDTH, EXPERTS, TOP_K = 20, 5, 4, 2


class Routers(nn.Module):
    """Two routers, the second on what the first says; gives the logits of each."""

    def __init__(self) -> None:
        """The same weights on every rank."""
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(WIDTH, EXPERTS, dtype=torch.float64)
        self.second = nn.Linear(EXPERTS, EXPERTS, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(T, WIDTH) to two of (T, EXPERTS)."""
        first = self.first(x)
        return [first, self.second(first.tanh())]


def tokens() -> torch.Tensor:
    """(NUM_TOKENS, WIDTH) of the whole batch, of which half lean to one side."""
    x = torch.randn(NUM_TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    return x + torch.linspace(-1, 1, NUM_TOKENS, dtype=torch.float64)[:, None]


def real() -> torch.Tensor:
    """(NUM_TOKENS,) which are real; one stretch has none."""
    mask = torch.arange(NUM_TOKENS) % 7 != 2
    mask[13:16] = False
    return mask


def gradient(cuts: list[list[int]], *, convention: str, ahead: bool, windows: bool) -> dict[str, Any]:
    """Values and gradient of the load-balance loss, over the tokens that are this rank's.

    Args:
        cuts: For each micro-batch, where the ranks' parts of the tokens begin and end.
        convention: That of the loss.
        ahead: Whether every micro-batch is counted ahead.
        windows: Whether f is the window's.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    model: nn.Module = Routers()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    window = moe.WindowLoad() if windows else None
    parts = [slice(cut[rank], cut[rank + 1]) for cut in cuts]
    if ahead:
        assert window is not None
        for part in parts:
            with torch.no_grad():
                window.count_ahead(model(tokens()[part]), top_k=TOP_K, mask=real()[part])
    values = []
    for part in parts:
        loss = moe.load_balancing_loss(
            model(tokens()[part]),
            top_k=TOP_K,
            convention=convention,  # type: ignore[arg-type]
            mask=real()[part],
            global_batch=True,
            window=window,
        )
        (loss.sum() / len(parts)).backward()
        values.append(loss.reshape(-1).tolist())
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return {"values": values, "gradient": torch.cat(gradients).tolist()}


def nan_on_one_rank() -> float:
    """The value where rank 1 has a logit that is not a number."""
    logits = torch.zeros(3, 4)
    if dist.get_rank() == 1:
        logits[0, 0] = torch.nan
    return float(moe.load_balancing_loss(logits, top_k=1, global_batch=True))


def within_a_group(*, is_alone: bool) -> list[float]:
    """The values over a group of one rank each, or of both."""
    groups = [dist.new_group([0]), dist.new_group([1])] if is_alone else [dist.new_group([0, 1])] * 2
    logits = torch.tensor([[1.0, 0.0]] if dist.get_rank() == 0 else [[0.0, 1.0]])
    loss = moe.load_balancing_loss([logits], top_k=1, global_batch=True, process_group=groups[dist.get_rank()])
    return [float(value) for value in loss]
