"""A small mixture of experts in a loop of one's own, whose router goes wrong when a test wants it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trimtab
from trimtab import Run, WatchConfig, WatchFinding
from trimtab.moe import RouterWatch

NUM_EXPERTS = 4
NUM_TOKENS = 64


class Mixture(nn.Module):
    """One layer: a router, and the expert that it likes best weighed by how much."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_EXPERTS))
        self.head = nn.Linear(width, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.softmax(self.gate(hidden), -1).max(-1)
        outputs = torch.stack([expert(hidden) for expert in self.experts], 1)
        picked = outputs[torch.arange(len(hidden)), chosen]
        return self.head(hidden + weights[:, None] * picked).squeeze(-1)


def new_training(seed: int = 0) -> tuple[Mixture, torch.optim.Optimizer]:
    """A model and its optimizer, the same for the same seed."""
    torch.manual_seed(seed)
    model = Mixture()
    with torch.no_grad():  # confident enough from the start for its choices not to drift
        model.gate.weight.mul_(3)
        model.gate.bias.zero_()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def collapse(model: Mixture) -> None:
    """Scales the router's weights away: every token goes to expert 0, surely."""
    with torch.no_grad():
        model.gate.weight.zero_()
        model.gate.bias.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))


def settings(model: nn.Module, report_every: int = 10) -> dict[str, Any]:
    """What `Run` takes to watch this model."""
    # A busy machine must not decide a test: its speed and its memory are others' business.
    config = WatchConfig(report_every=report_every, throughput_fraction=1e-9, host_memory_floor_bytes=1)
    return {"watch": RouterWatch(model, routers=lambda model: {"gate": model.gate}, top_k=1, config=config)}


def train(
    run: Run,
    model: nn.Module,
    steps: range,
    *,
    before: Callable[[int], None] = lambda step: None,
    evaluations: dict[int, float] | None = None,
    num_micros: int = 1,
    rank: int = 0,
) -> None:
    """Trains, with inputs that are a function of the step alone.

    Args:
        run: The run.
        model: Its model.
        steps: Steps (1-based) to train.
        before: Called before each step.
        evaluations: Losses that are said to be evaluated after these steps.
        num_micros: Micro-batches a step.
        rank: Whose inputs they are.
    """
    for step in steps:
        before(step)
        for micro in range(num_micros):
            generator = torch.Generator().manual_seed(step * 1000 + 100 * rank + micro)
            hidden = torch.randn(NUM_TOKENS, 8, generator=generator)
            losses = (model(hidden) - hidden[:, 0]) ** 2
            run.micro_batch(losses, per="token", rows=[step] * NUM_TOKENS).backward()
        run.step()
        if evaluations and step in evaluations:
            run.evaluation(evaluations[step])


class Found(list[tuple[str, int]]):
    """An `on_finding` that keeps what and when."""

    def __call__(self, finding: WatchFinding) -> None:
        """Keeps the finding."""
        self.append((finding.kind, finding.step))


def weights(model: nn.Module) -> list[bytes]:
    """All weights, to the bit."""
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def events(folder: Path | None) -> list[tuple[str, int, dict[str, Any]]]:
    """What a log holds of a watch, in the order of its time."""
    assert folder is not None
    kinds = ("watch", "router", "vitals", "finding", "evaluation")
    return [(e.kind, e.step, e.facts) for e in trimtab.open_log(folder).event_list() if e.kind in kinds]
