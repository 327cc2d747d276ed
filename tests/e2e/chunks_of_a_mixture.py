"""A small mixture of experts in two populations, trained in chunks by a loop of one's own that has every gate."""

from collections.abc import Callable, Collection
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from trimtab import GuardConfig, Run, Schedule, WatchConfig
from trimtab.checkpoint import Checkpointer, round_trip
from trimtab.moe import RouterWatch, load_balancing_loss, router_z_loss

VOCABULARY, WIDTH, NUM_EXPERTS, TOP_K = 24, 16, 4, 2
LR, NUM_STEPS = 3e-3, 400
SCHEDULE = Schedule(form="cosine", lr=LR, num_steps=NUM_STEPS)

# A busy machine must not decide a test: its speed and its memory are others' business.
CONFIG = WatchConfig(report_every=10, throughput_fraction=1e-9, host_memory_floor_bytes=1)


class Layer(nn.Module):
    """A router, and what its two likeliest experts make of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)
        nn.init.zeros_(self.router.bias)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.router(hidden)
        weights, chosen = logits.softmax(-1).topk(TOP_K)
        outputs = torch.einsum("btd,edf->btef", hidden, self.experts)
        picked = outputs.gather(2, chosen[..., None].expand(-1, -1, -1, WIDTH))
        return hidden + (weights[..., None] * F.gelu(picked)).sum(2), logits


class Mixture(nn.Module):
    """Predicts the next of `VOCABULARY` tokens; `logits` are what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.router_logits: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(input_ids)
        self.router_logits = []
        for layer in self.layers:
            hidden, logits = layer(hidden)
            self.router_logits.append(logits)
        return self.head(hidden)


def build() -> tuple[Mixture, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """All of a training as it begins."""
    torch.manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)


def batch_of(step: int) -> torch.Tensor:
    """(8, 17) token ids of a chain in which each token mostly decides the next; a function of the step alone."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(VOCABULARY, (8, 1), generator=generator)
    for _ in range(16):
        noise = torch.randint(VOCABULARY, (8, 1), generator=generator)
        is_noise = torch.rand((8, 1), generator=generator) < 0.1
        ids = torch.cat([ids, torch.where(is_noise, noise, (5 * ids[:, -1:] + 3) % VOCABULARY)], 1)
    return ids


def losses_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """(8, 16) token losses."""
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(8, 16)


def train_chunk(
    out: Path,
    last_step: int,
    *,
    schedule: Schedule | None = SCHEDULE,
    guard: GuardConfig | None = None,
    before: Callable[[int, nn.Module], None] = lambda step, model: None,
    losses: Callable[[int, torch.Tensor], torch.Tensor] = lambda step, losses: losses,
    evaluations: Callable[[int, float], float] = lambda step, loss: loss,
    save: bool = True,
    save_at: Collection[int] = (),
    healthy: bool | None = None,
    behind_save: Callable[[nn.Module], None] = lambda model: None,
    trips: bool = True,
    run_id: str | None = None,
) -> Run:
    """Trains from where the newest checkpoint ends up to a step, evaluates every ten steps, saves, loads it again.

    Args:
        out: Where the run and its checkpoints are.
        last_step: The last step of the chunk.
        schedule: The rates that are stated; the optimizer's own are those of `SCHEDULE`.
        guard: What `Run` takes.
        before: Called before each step.
        losses: What becomes of the losses of a step.
        evaluations: What becomes of the loss of an evaluation.
        save: Whether a checkpoint is saved at the end.
        save_at: Steps behind which one is saved before that.
        healthy: What `save` takes.
        behind_save: Called with the model between the save and the round trip.
        trips: Whether there is a round trip.
        run_id: What `Run` takes.
    """
    model, optimizer, scheduler = build()
    watch = RouterWatch(
        model,
        routers=lambda model: [layer.router for layer in model.layers],
        experts=lambda model: [layer.experts for layer in model.layers],
        num_populations=2,
        top_k=TOP_K,
        config=CONFIG,
    )
    checkpoints = Checkpointer(out / "checkpoints")
    settings = {"guard": guard, "watch": watch, "schedule": schedule, "max_grad_norm": 1.0, "run_id": run_id}
    with Run(out, model=model, optimizer=optimizer, **settings) as run:
        training = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "run": run}
        done = 0
        if checkpoints.has_checkpoints():
            done = checkpoints.load(checkpoints.pick(), **training).step
        for step in range(done + 1, last_step + 1):
            before(step, model)
            token_losses = losses(step, losses_of(model, batch_of(step)))
            aux = 1e-4 * router_z_loss(model.router_logits).mean()
            aux = aux + 1e-2 * load_balancing_loss(model.router_logits, top_k=TOP_K).mean()
            loss = run.micro_batch(token_losses, rows=torch.arange(8) + 8 * step, aux=aux)
            loss.backward()
            run.step()
            scheduler.step()
            if step % 10 == 0:
                with torch.no_grad():
                    run.evaluation(evaluations(step, losses_of(model, batch_of(0)).mean().item()))
            if step in save_at:
                checkpoints.save(step, loss=loss.item(), **training)
        if save:
            saved = checkpoints.save(last_step, loss=loss.item(), healthy=healthy, **training)
            behind_save(model)
            if trips:
                round_trip(saved, build=build, loss=loss.item(), probe_ids=batch_of(0), **training)
    return run
