"""Loops of a mixture of experts with an audit of their weights, for `trimtab prove tests.proof.aux_audit:NAME`.

`sound` is as it should be. Each of the others has one mistake in the loss, and trains without a complaint.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from trimtab import GuardConfig, moe
from trimtab.proof import Loop

NUM_WINDOWS, NUM_MICROS, NUM_CLASSES, NUM_EXPERTS = 6, 3, 5, 4
WEIGHTS = {"z": 1e-3, "load_balance": 1e-2}

Aux = Callable[[torch.Tensor, int], torch.Tensor]
"""Takes the router's logits and the accumulation; gives what the loop adds to the loss of a micro-batch."""


class Net(nn.Module):
    """(B, 6) in, (B, 5) and the router's logits (B, 4) out."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(6, NUM_CLASSES) for _ in range(NUM_EXPERTS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.router(x)
        share = logits.softmax(-1)
        best = share.topk(2, dim=-1)
        kept = torch.zeros_like(share).scatter(-1, best.indices, best.values)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (kept[..., None] * outputs).sum(1), logits


def z(logits: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(-1).square().mean()


def balance(logits: torch.Tensor) -> torch.Tensor:
    share = logits.softmax(-1)
    chosen = torch.zeros_like(share).scatter(-1, share.topk(2, dim=-1).indices, 1.0)
    return NUM_EXPERTS * (chosen.mean(0) * share.mean(0)).sum() / 2


def as_stated(logits: torch.Tensor, accumulation: int) -> torch.Tensor:
    return WEIGHTS["z"] * z(logits) + WEIGHTS["load_balance"] * balance(logits)


def windows() -> list[list[dict[str, torch.Tensor]]]:
    dice = torch.Generator().manual_seed(0)
    return [
        [
            {
                "x": torch.randn(16, 6, generator=dice),
                "labels": torch.randint(NUM_CLASSES, (16,), generator=dice),
            }
            for _ in range(NUM_MICROS)
        ]
        for _ in range(NUM_WINDOWS)
    ]


def loop(guard: GuardConfig | None, *, aux: Aux = as_stated) -> Loop:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def handed_over(batch: dict[str, torch.Tensor], run: trimtab.Run, accumulation: int) -> dict[str, torch.Tensor]:
        """What training and the audit have in common."""
        output, logits = model(batch["x"])
        losses = F.cross_entropy(output, batch["labels"], reduction="none")
        tokens = (batch["labels"] != -100).long()
        total = run.micro_batch(
            losses, per="sample", rows=list(range(16)), tokens=tokens, aux=aux(logits, accumulation)
        )
        return {"total": total, "ce": losses.mean()}

    def losses(batch: dict[str, torch.Tensor], accumulation: int) -> dict[str, torch.Tensor]:
        return handed_over(batch, trimtab.Run(None, record=False, accumulation=accumulation), accumulation)

    run = trimtab.Run(None, record=False, model=model, optimizer=optimizer, accumulation=NUM_MICROS, guard=guard)
    made = Loop.of_run(
        run,
        model=model,
        optimizer=optimizer,
        micro_loss=lambda batch: handed_over(batch, run, NUM_MICROS)["total"],
        windows=windows(),
    )
    made.audit = lambda: moe.audit_aux_weights(
        model, losses=losses, micro_batches=made.windows[0], weights=WEIGHTS, routers=[model.router], top_k=2
    )
    return made


def sound(guard: GuardConfig | None) -> Loop:
    return loop(guard)


def factor_inside(guard: GuardConfig | None) -> Loop:
    return loop(guard, aux=lambda x, n: 0.01 * WEIGHTS["z"] * z(x) + WEIGHTS["load_balance"] * balance(x))


def squared(guard: GuardConfig | None) -> Loop:
    return loop(guard, aux=lambda x, n: WEIGHTS["z"] * z(x) + WEIGHTS["load_balance"] ** 2 * balance(x))


def ignored(guard: GuardConfig | None) -> Loop:
    return loop(guard, aux=lambda x, n: WEIGHTS["load_balance"] * balance(x))


def constant(guard: GuardConfig | None) -> Loop:
    return loop(guard, aux=lambda x, n: WEIGHTS["z"] * z(x) + WEIGHTS["load_balance"] * balance(x.detach()))


def undivided(guard: GuardConfig | None) -> Loop:
    return loop(guard, aux=lambda x, n: n * as_stated(x, n))


def raising(guard: GuardConfig | None) -> Loop:
    made = loop(guard)
    made.audit = lambda: moe.audit_aux_weights(made.model, losses=None, micro_batches=[], weights={})
    return made


def no_audit_at_all(guard: GuardConfig | None) -> Loop:
    made = loop(guard)
    made.audit = lambda: 3
    return made


def rough(guard: GuardConfig | None) -> Loop:
    """The loss holds a large term of which the audit is told nothing."""
    return loop(guard, aux=lambda x, n: as_stated(x, n) + x[0].square().sum())
