"""A loop that is guarded by hand: `guard.check`, and what to do about its verdict written out, one method a thought.

It is right as it stands; `broken.py` gets one thought wrong at a time.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from tests.proof.good import Net, adamw, batches, rank_and_world_size, schedule, syncing, token_losses, wrapped
from torch import nn

import trimtab
from trimtab import GuardConfig
from trimtab.proof import Loop

NEAR_A_WINDOW = 24.0
"""By what losses are divided before the tokens of the window are known."""


def summed(*figures: float) -> list[float]:
    """Over the ranks."""
    together = torch.tensor(figures, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(together)
    return together.tolist()


class ByHand:
    def __init__(self, guard: GuardConfig | None, net: nn.Module | None = None) -> None:
        self.model = wrapped(net if net is not None else Net())
        self.optimizer = adamw(self.model)
        self.scheduler = schedule(self.optimizer)
        self.guard = None if guard is None else trimtab.PerTokenLossGuard(guard)
        self.num_skipped = 0

    def loop(self) -> Loop:
        return Loop(
            model=self.model,
            optimizer=self.optimizer,
            train=lambda windows: [self.window(window) for window in windows],
            windows=batches(),
            scheduler=self.scheduler,
            num_skipped=self.count_skips,
        )

    def count_skips(self) -> int:
        return self.num_skipped

    def window(self, micros: Any) -> float | None:
        self.tokens, self.kept_loss, self.kept_tokens = 0.0, 0.0, 0.0
        for micro, batch in enumerate(micros):
            with syncing(self.model, micro):
                self.micro_batch(batch)
        self.scale_gradients()
        if self.kept_tokens == 0:
            self.drop()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return self.kept_loss / self.kept_tokens if self.kept_tokens else None

    def micro_batch(self, batch: Any) -> None:
        loss_sum, num_tokens = self.forward(batch)
        keep = self.decide(float(loss_sum.detach()), num_tokens)
        self.count(float(loss_sum.detach()), num_tokens, keep=keep)
        self.backward(loss_sum, keep=keep)

    def forward(self, batch: Any) -> tuple[torch.Tensor, int]:
        labels = batch["labels"]
        return token_losses(self.model(batch["x"]), labels).sum(), int((labels != -100).sum())

    def decide(self, loss_sum: float, num_tokens: int) -> bool:
        is_bad = not math.isfinite(loss_sum)
        total, tokens, num_bad = summed(0.0 if is_bad else loss_sum, num_tokens, is_bad)
        return self.verdict(total if num_bad == 0 else math.nan, int(tokens))

    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        return self.guard is None or self.guard.check(loss_sum, num_tokens).keep

    def count(self, loss_sum: float, num_tokens: int, *, keep: bool) -> None:
        self.num_skipped += not keep
        [tokens] = summed(num_tokens)
        self.tokens += tokens
        if keep:
            self.kept_loss += loss_sum / rank_and_world_size()[1]
            self.kept_tokens += tokens

    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        self.scaled(loss_sum if keep else self.nothing()).backward()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * (rank_and_world_size()[1] / NEAR_A_WINDOW)

    def nothing(self) -> torch.Tensor:
        """A zero on the parameters' own graph."""
        return sum(parameter.flatten()[:0].sum() for parameter in self.model.parameters())

    def scale_gradients(self) -> None:
        for parameter in self.model.parameters():
            if self.tokens and parameter.grad is not None:
                parameter.grad *= NEAR_A_WINDOW / self.tokens

    def drop(self) -> None:
        """A step without gradients moves nothing."""
        self.optimizer.zero_grad()


def by_hand(guard: GuardConfig | None) -> Loop:
    return ByHand(guard).loop()
