"""`generation_probe`: what a model would say next, against Python's own numbers; and nothing of a training moves."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from trimtab.errors import UsageError
from trimtab.torch.probe import generation_probe

WORDS = 50


class Says(nn.Module):
    """Gives the same logits at every place."""

    def __init__(self, logits, wrap=lambda logits: logits):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits, dtype=torch.float32))
        self.wrap = wrap

    def forward(self, ids):
        return self.wrap(self.logits.expand(*ids.shape, -1))


def numbers_of(logits):
    """Probabilities, entropy and coefficient of variation, by hand."""
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    parts = [weight / math.fsum(weights) for weight in weights]
    mean = math.fsum(parts) / len(parts)
    variance = math.fsum((part - mean) ** 2 for part in parts) / len(parts)
    return parts, -math.fsum(part * math.log(part) for part in parts if part), math.sqrt(variance) / mean


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_a_peaked_distribution_is_told_in_numbers() -> None:
    source = random.Random(3)
    logits = torch.tensor([source.gauss(0, 3) for _ in range(WORDS)]).tolist()
    probe = generation_probe(Says(logits), IDS)
    parts, entropy, cv = numbers_of(logits)
    best = sorted(range(WORDS), key=lambda word: -parts[word])[:5]
    assert (probe.shape, probe.num_nonfinite, probe.vocabulary_size) == ("peaked", 0, WORDS)
    assert probe.top_ids == tuple(best)
    assert probe.top_probabilities == pytest.approx([parts[word] for word in best], rel=1e-6)
    assert (probe.entropy, probe.cv) == pytest.approx((entropy, cv), rel=1e-6)
    assert f"token {best[0]} leads" in probe.remark


def test_equal_logits_are_uniform_with_the_entropy_of_their_number_and_no_variation() -> None:
    probe = generation_probe(Says([2.5] * WORDS), IDS)
    assert probe.shape == "uniform"
    assert probe.entropy == pytest.approx(math.log(WORDS), rel=1e-12)
    assert probe.cv == pytest.approx(0, abs=1e-9)
    assert "as of weights that were not restored" in probe.remark


@pytest.mark.parametrize("spread", [0.3, 0.6])
def test_what_may_be_a_small_sound_model_is_not_said_to_lack_its_weights(spread: float) -> None:
    source = random.Random(3)
    probe = generation_probe(Says([source.gauss(0, spread) for _ in range(WORDS)]), IDS)
    assert probe.shape == "flat"
    assert "do not tell which" in probe.remark
    assert "not restored" not in probe.remark


def test_words_that_a_model_rules_out_are_counted_and_are_no_fault() -> None:
    # given a vocabulary that is padded by two words
    logits = [float(word % 4) for word in range(WORDS)]
    probe, padded = (generation_probe(Says(given), IDS) for given in (logits, [*logits, -math.inf, -math.inf]))
    assert (padded.shape, padded.num_nonfinite, padded.num_masked) == ("peaked", 0, 2 * IDS.numel())
    assert (padded.entropy, padded.cv) == pytest.approx((probe.entropy, probe.cv), rel=1e-12)
    assert padded.top_probabilities == pytest.approx(probe.top_probabilities)
    assert "12 logits are -inf" in padded.remark
    # and where the rest are alike, or no word is left
    assert generation_probe(Says([1.0] * WORDS + [-math.inf] * WORDS), IDS).shape == "uniform"
    assert generation_probe(Says([1.0] + [-math.inf] * WORDS), IDS).shape == "one-hot"
    nothing = generation_probe(Says([-math.inf] * WORDS), IDS)
    assert (nothing.shape, nothing.num_nonfinite) == ("nonfinite", WORDS * IDS.numel())


def test_logits_that_ran_away_are_one_hot() -> None:
    probe = generation_probe(Says([0.0] * 7 + [1e6] + [0.0] * (WORDS - 8)), IDS)
    assert (probe.shape, probe.top_ids[0], probe.top_probabilities[0]) == ("one-hot", 7, 1.0)
    assert probe.entropy == 0
    assert probe.cv == pytest.approx(math.sqrt(WORDS - 1))
    assert "ran away" in probe.remark


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_counted_and_nothing_else_is_told(bad: float) -> None:
    probe = generation_probe(Says([0.0] * 9 + [bad]), IDS)
    assert (probe.shape, probe.num_nonfinite, probe.top_ids) == ("nonfinite", 6, ())
    assert math.isnan(probe.entropy)
    assert math.isnan(probe.cv)


def test_one_position_that_is_sure_of_itself_is_not_the_whole_model() -> None:
    class SureAtLast(nn.Module):
        def forward(self, ids):
            logits = torch.zeros(*ids.shape, WORDS)
            logits[..., :3] = 5.0
            logits[:, -1, 3] = 1e4
            return logits

    probe = generation_probe(SureAtLast(), IDS)
    assert (probe.shape, probe.top_ids[0]) == ("peaked", 3)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, "cache"),
        lambda logits: [logits],
        lambda logits: {"logits": logits},
        lambda logits: type("Output", (), {"logits": logits})(),
        lambda logits: logits[:, -1],
        lambda logits: logits[0],
        lambda logits: logits.to(torch.bfloat16),
    ],
    ids=["tuple", "list", "mapping", "object", "last alone", "no batch", "bfloat16"],
)
def test_the_logits_are_found_in_whatever_a_model_gives(wrap) -> None:
    logits = [float(word % 4) for word in range(WORDS)]
    assert generation_probe(Says(logits, wrap), IDS).entropy == pytest.approx(numbers_of(logits)[1], rel=1e-6)


def test_a_fresh_model_of_transformers_knows_nothing_and_one_that_learned_does() -> None:
    # given
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))
    ids = torch.arange(12).reshape(1, 12)
    fresh = generation_probe(model, ids)
    # when
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    for _ in range(40):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # then
    assert (fresh.shape, generation_probe(model, ids).shape) == ("uniform", "peaked")
    with torch.no_grad():
        model.lm_head.weight[3, 3] = math.nan
    assert generation_probe(model, ids).shape == "nonfinite"


class Moody(nn.Module):
    """Whatever a forward of training may move: dropout, the statistics of batch norm, a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, WORDS)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_words", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", None)

    def forward(self, ids):
        self.num_calls += 1
        self.num_words = self.num_words + ids.numel()
        self.last = ids
        if not hasattr(self, "first"):
            self.register_buffer("first", ids, persistent=False)
        torch.rand(3), random.random(), np.random.rand()
        hidden = self.drop(self.norm(self.embedding(ids).flatten(0, 1))).unflatten(0, ids.shape)
        return self.head(hidden)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_training_moves(fails: bool) -> None:
    # given a model in training, a part of it frozen in evaluation mode, with gradients
    torch.manual_seed(1)
    model = Moody()
    model(IDS).sum().backward()
    del model.first
    model.last = None
    model.norm.eval()
    if fails:
        model.head = nn.Flatten(0)  # logits of one dimension
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    buffers = [(name, buffer) for name, buffer in model._buffers.items()]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    # when
    if fails:
        with pytest.raises(UsageError, match="needs logits of shape"):
            generation_probe(model, IDS)
    else:
        generation_probe(model, IDS)
    # then
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, was) for p, was in zip(model.parameters(), gradients, strict=True))
    assert all(value is was for (_, value), (_, was) in zip(model._buffers.items(), buffers, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[1:]


def test_a_model_in_training_is_probed_as_in_evaluation() -> None:
    torch.manual_seed(1)
    model = Moody()
    found = generation_probe(model, IDS)
    assert found == generation_probe(model.eval(), IDS)


def test_a_compiled_model_is_probed_without_compiling_it() -> None:
    def refuse(graph, inputs):
        raise AssertionError("compiled for a probe")

    model = Says([float(word % 7) for word in range(WORDS)])
    assert generation_probe(torch.compile(model, backend=refuse), IDS) == generation_probe(model, IDS)


@pytest.mark.parametrize(
    "ids",
    [[1, 2], torch.tensor([0.5]), torch.tensor([True]), torch.zeros(0, dtype=torch.int64), torch.zeros(1, 1, 1).long()],
    ids=["list", "floats", "truths", "none", "three axes"],
)
def test_what_are_no_ids_is_refused(ids) -> None:
    with pytest.raises(UsageError, match="generation_probe takes token ids"):
        generation_probe(Says([0.0, 1.0]), ids)


@pytest.mark.parametrize("given", ["words", None, torch.zeros(3), torch.zeros(2, 3, dtype=torch.int64), ()], ids=repr)
def test_what_holds_no_logits_is_refused(given) -> None:
    with pytest.raises(UsageError, match="needs logits of shape"):
        generation_probe(Says([0.0], lambda _: given), IDS)
