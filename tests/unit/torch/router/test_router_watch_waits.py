"""Nothing of a `RouterWatch` waits for a device but the reading of a report: reads by the host are counted."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimtab.moe import RouterReport, RouterWatch
from trimtab.torch.router import layers as router_layers

_spec = importlib.util.spec_from_file_location("host_reads", Path(__file__).parents[1] / "test_waits.py")
assert _spec is not None
assert _spec.loader is not None
waits = importlib.util.module_from_spec(_spec)
sys.modules["host_reads"] = waits
_spec.loader.exec_module(waits)

NUM_EXPERTS, K = 6, 2


class Gate(nn.Linear):
    """A router that gives logits, or with them what it chose."""

    top_k = K

    def __init__(self, *, chooses: bool) -> None:
        super().__init__(8, NUM_EXPERTS)
        self.chooses = chooses

    def forward(self, x: torch.Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits.softmax(-1), logits.topk(K, -1).indices) if self.chooses else logits


class Model(nn.Module):
    def __init__(self, *, chooses: bool, checkpoints: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gates = nn.ModuleList([Gate(chooses=chooses), Gate(chooses=chooses)])
        self.experts = nn.ParameterList([nn.Parameter(torch.randn(NUM_EXPERTS, 8, 2)) for _ in range(2)])
        self.checkpoints = checkpoints
        self.watch: RouterWatch | None = None

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        for gate, experts in zip(self.gates, self.experts, strict=True):
            x = (
                checkpoint(self.layer, x, gate, experts, use_reentrant=False)
                if self.checkpoints
                else self.layer(x, gate, experts)
            )
        if self.watch is not None:
            self.watch.tap(x[..., :NUM_EXPERTS], layer="tapped")
        return x.square().mean()

    def layer(self, x: torch.Tensor, gate: nn.Module, experts: torch.Tensor) -> torch.Tensor:
        found = gate(x)
        logits = found[0] if isinstance(found, tuple) else found
        return x + logits.softmax(-1) @ experts.sum(-1)


def steps(model: Model, *, masked: bool, num_steps: int = 3) -> None:
    """A window of two micro-batches a step, and an evaluation at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]) if masked else None
    for step in range(num_steps):
        for micro in range(2):
            x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(10 * step + micro))
            model(x, attention_mask=mask).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(2, 4, 8), attention_mask=mask)


@pytest.mark.parametrize("most_held", [1, 2**18], ids=["sums in each forward", "sums at the report"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("chooses", [False, True], ids=["logits", "choices"])
def test_a_window_and_its_collection_read_nothing_on_the_host(
    chooses: bool, masked: bool, checkpoints: bool, most_held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_layers, "_MOST_HELD", most_held)
    # given: what the model and the optimizer read by themselves
    plain = Model(chooses=chooses, checkpoints=checkpoints)
    with waits.HostReads() as alone:
        steps(plain, masked=masked)
    model = Model(chooses=chooses, checkpoints=checkpoints)
    model.watch = RouterWatch(
        model,
        routers=lambda model: model.gates,
        num_populations=2,
        top_k=K,
        experts=lambda model: [[experts] for experts in model.experts],
    )
    # when
    with waits.HostReads() as watched:
        steps(model, masked=masked)
        reading = model.watch.collect(3)
    # then
    assert watched.num_reads == alone.num_reads
    report: RouterReport = reading.report()
    assert {layer.name for layer in report.layers} == {"gates.0", "gates.1", "tapped"}
    real = 5 if masked else 8
    assert all(layer.num_tokens == 3 * 2 * real for layer in report.layers)
    assert all(sum(layer.counts or ()) == K * layer.num_tokens for layer in report.layers)
    assert report.layers[0].population_cosine is not None
