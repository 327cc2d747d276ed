"""A watch changes nothing: weights are bit for bit those of the training without it; and it hears compiled models."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import MixtralConfig, MixtralForCausalLM

from trimtab.moe import RouterWatch


class Gate(nn.Module):
    top_k = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> Any:
        logits = x @ self.weight.T
        top = logits.softmax(-1).topk(self.top_k)
        return logits, top.values, top.indices


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) * self.gate(x)[1].sum(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.use_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x.square().mean()


def gates_of(model: nn.Module) -> list[nn.Module]:
    return [block.gate for block in model.blocks]


def trained(kind: str, *, watched: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    if kind == "mixtral":
        sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
        model: nn.Module = MixtralForCausalLM(
            MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=4, router_jitter_noise=0.1)
        )
        model.train()
        watch = RouterWatch(model, num_populations=2) if watched else None
    else:
        model = Model({"plain": None, "reentrant": True, "not reentrant": False}[kind])
        watch = RouterWatch(model, routers=gates_of) if watched else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 7):
        if kind == "mixtral":
            ids = torch.randint(0, 32, (2, 6))
            loss = model(input_ids=ids, labels=ids, output_router_logits=True).loss
        else:
            loss = model(torch.randn(2, 6, 8, requires_grad=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch is not None and step % 2 == 0:
            assert watch.report(step).layers[0].num_tokens == 24
    return {**model.state_dict(), "random": torch.get_rng_state()}


@pytest.mark.parametrize("kind", ["plain", "mixtral", "reentrant", "not reentrant"])
def test_weights_and_random_numbers_are_bit_for_bit_those_without_a_watch(kind: str):
    plain, watched = trained(kind, watched=False), trained(kind, watched=True)

    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


@pytest.mark.parametrize("fullgraph", [False, True], ids=["with breaks", "full graph"])
def test_the_routers_of_a_compiled_model_are_heard_in_training_only(fullgraph: bool):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
    watch = RouterWatch(compiled, routers=gates_of)
    batches = [torch.randn(2, 6, 8) for _ in range(4)]

    for batch in batches:
        compiled(batch).backward()
    with torch.no_grad():
        compiled(batches[0])
    model.eval()
    compiled(batches[0])
    model.train()
    report = watch.report(1)
    eager = RouterWatch(model, routers=gates_of)
    for batch in batches:
        model(batch)
    expected = eager.report(1)

    assert report.expected_tokens == 48
    assert [layer.name for layer in report.layers] == ["blocks.0.gate", "blocks.1.gate"]
    assert [layer.num_tokens for layer in report.layers] == [48, 48]
    # Dropout differs between a compiled forward and an eager one; the first router is before any.
    assert report.layers[0].counts == expected.layers[0].counts
    assert report.layers[0].z == pytest.approx(expected.layers[0].z)


@pytest.mark.parametrize("fullgraph", [False, True], ids=["with breaks", "full graph"])
def test_a_model_that_was_compiled_in_place_is_heard_in_one_graph(fullgraph: bool):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()
    model.compile(backend="aot_eager", fullgraph=fullgraph)
    watch = RouterWatch(model, routers=gates_of)

    for _ in range(3):
        model(torch.randn(2, 6, 8)).backward()
    with torch.no_grad():
        model(torch.randn(2, 6, 8))
    report = watch.report(1)

    assert [(layer.num_tokens, sum(layer.counts or ())) for layer in report.layers] == [(36, 72), (36, 72)]
    assert (report.expected_tokens, report.notes) == (36, ())


def test_a_compiled_part_that_is_called_by_itself_is_not_counted_and_said():
    torch._dynamo.reset()
    model = Model()
    part = torch.compile(model.blocks[0], backend="aot_eager")
    watch = RouterWatch(model, routers=gates_of)

    part(torch.randn(2, 6, 8)).sum().backward()
    report = watch.report(1)

    assert report.layers == ()
    assert report.notes[0].startswith("a compiled part of the model was called outside of the model's own forward")
