"""Sound loops whose loss is not a plain one of logits: it rises by other outputs than a plain one does, or by none.

Each is a factory for `trimtab prove tests.proof.losses:NAME`. None reports its loss.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from tests.proof.good import Net, adamw, batches, run_loop, syncing, wrapped
from torch import nn

import trimtab
from trimtab import GuardConfig
from trimtab.proof import Loop

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(B * T, 5) output, (B * T,) labels -> 0-d."""


def looped(
    guard: GuardConfig | None,
    loss_of: Loss,
    *,
    optimizers_of: Callable[[nn.Module], Iterable[torch.optim.Optimizer]] = lambda model: [adamw(model)],
) -> Loop:
    model = wrapped(Net())
    optimizers = list(optimizers_of(model))
    judge = None if guard is None else trimtab.LossGuard(guard, model=model)

    def train(windows: Any) -> None:
        for window in windows:
            for micro, batch in enumerate(window):
                with syncing(model, micro):
                    loss = loss_of(model(batch["x"]).flatten(0, 1), batch["labels"].flatten().clamp(min=0))
                    if judge is not None:
                        loss = judge(loss)
                    (loss / len(window)).backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    return Loop(
        model=model,
        optimizer=optimizers[0],
        train=train,
        windows=batches(),
        num_skipped=lambda: 0 if judge is None else judge.num_skipped,
        num_judged=lambda: 0 if judge is None else judge.num_judged,
    )


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return F.one_hot(labels, 5).float()


def of_log_probabilities(guard: GuardConfig | None) -> Loop:
    """Falls as the output rises."""
    return looped(guard, lambda y, labels: F.nll_loss(-F.softplus(-y), labels) + F.relu(-y).mean())


def of_a_margin(guard: GuardConfig | None) -> Loop:
    return looped(guard, lambda y, labels: F.softplus(-y).mean())


def capped(guard: GuardConfig | None) -> Loop:
    return looped(guard, lambda y, labels: F.cross_entropy(3.0 * torch.tanh(y / 3.0), labels))


def of_normed_logits(guard: GuardConfig | None) -> Loop:
    return looped(guard, lambda y, labels: F.cross_entropy(F.layer_norm(y, (5,)), labels))


def contrastive(guard: GuardConfig | None) -> Loop:
    return looped(guard, lambda y, labels: 1.0 - F.cosine_similarity(y, one_hot(labels)).mean())


def of_a_reward(guard: GuardConfig | None) -> Loop:
    return looped(guard, lambda y, labels: -y.sigmoid().mean())


def of_probabilities(guard: GuardConfig | None) -> Loop:
    """Refuses what is no probability."""
    return looped(guard, lambda y, labels: F.binary_cross_entropy(0.5 + 0.1 * y, one_hot(labels)))


def with_two_optimizers(guard: GuardConfig | None) -> Loop:
    def optimizers_of(model: nn.Module) -> Iterable[torch.optim.Optimizer]:
        for part, lr in (("inner", 0.01), ("outer", 0.02)):
            own = [parameter for name, parameter in model.named_parameters() if part in name]
            yield torch.optim.AdamW(own, lr=lr, weight_decay=0.1)

    return looped(guard, F.cross_entropy, optimizers_of=optimizers_of)


def with_skipped_tokens_removed(guard: GuardConfig | None) -> Loop:
    if guard is not None and guard.enabled:
        guard = dataclasses.replace(guard, skipped_tokens="removed")
    loop = run_loop(guard, normalize="window")
    loop.skipped_tokens = "removed"
    return loop
