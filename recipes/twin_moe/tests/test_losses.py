"""The loss is `ce + 0.01*lbl + z_weight*z + 0.01*xpop`: each term its definition in plain Python, each weight once."""

import math
from dataclasses import replace

import pytest
import torch

from recipes.twin_moe.config import ModelConfig, OptimConfig, read_preset
from recipes.twin_moe.losses import loss_terms
from recipes.twin_moe.model import Output, TwinMoe

MODEL = ModelConfig(dim=8, num_layers=3, num_heads=2, num_experts=4, top_k=2, num_populations=2, expert_dim=5)
OPTIM = OptimConfig(lr=1e-3)


@pytest.fixture
def model():
    tiny = read_preset("tiny")
    return TwinMoe(replace(tiny, model=MODEL, data=replace(tiny.data, num_tokens=6)))


@pytest.fixture
def output():
    generator = torch.Generator().manual_seed(0)

    def random(last):
        return torch.randn(2, 6, last, generator=generator)

    return Output(random(256), tuple(2 * random(4) for _ in range(3)))


LABELS = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(1))


def log_sum_exp(values):
    return math.log(sum(math.exp(value) for value in values))


def switch_balance(tokens, *, top_k):
    """E * sum f_i P_i / k of one layer, over a list of tokens' logits."""
    num_experts = len(tokens[0])
    f, P = [0.0] * num_experts, [0.0] * num_experts
    for logits in tokens:
        for expert in sorted(range(num_experts), key=lambda place: -logits[place])[:top_k]:
            f[expert] += 1 / len(tokens)
        for expert in range(num_experts):
            P[expert] += math.exp(logits[expert] - log_sum_exp(logits)) / len(tokens)
    return num_experts * sum(a * b for a, b in zip(f, P, strict=True)) / top_k


def cosine_of_halves(tensors):
    halves = [[], []]
    for tensor in tensors:
        middle = tensor.shape[0] // 2
        halves[0] += tensor[:middle].flatten().tolist()
        halves[1] += tensor[middle:].flatten().tolist()
    a, b = halves
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_the_terms_are_means_over_layers_of_their_definitions(model, output):
    # given populations that are alike in one layer and opposite in another
    with torch.no_grad():
        for layer, sign in ((0, 1.0), (1, -1.0)):
            for part in model.expert_weights()[layer]:
                part[2:] += sign * part[:2]

    # when
    terms = loss_terms(output, LABELS, optim=OPTIM, model=model)

    # then
    layers = [logits.flatten(0, 1).tolist() for logits in output.router_logits]
    z = [sum(log_sum_exp(token) ** 2 for token in layer) / len(layer) for layer in layers]
    balance = [switch_balance(layer, top_k=2) for layer in layers]
    cosines = [cosine_of_halves(layer) for layer in model.expert_weights()]
    assert terms.z.item() == pytest.approx(sum(z) / 3, rel=1e-5)
    assert terms.lbl.item() == pytest.approx(sum(balance) / 3, rel=1e-5)
    assert terms.xpop.item() == pytest.approx(sum(map(abs, cosines)) / 3, rel=1e-4)
    assert cosines[0] > 0.5
    assert cosines[1] < -0.5  # its size counts


def test_a_tokens_loss_is_its_cross_entropy(model, output):
    losses = loss_terms(output, LABELS, optim=OPTIM, model=model).token_losses
    for row in range(2):
        for token in range(6):
            logits = output.logits[row, token].tolist()
            expected = log_sum_exp(logits) - logits[LABELS[row, token]]
            assert losses[row, token].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "part"),
    [((3.0, 0.0, 0.0), "lbl"), ((0.0, 3.0, 0.0), "z"), ((0.0, 0.0, 3.0), "xpop")],
    ids=["lbl", "z", "xpop"],
)
def test_each_weight_is_applied_once_and_to_its_own_term(model, output, weights, part):
    lbl, z, xpop = weights
    optim = replace(OPTIM, lbl_weight=lbl, z_weight=z, xpop_weight=xpop)
    terms = loss_terms(output, LABELS, optim=optim, model=model)
    assert terms.aux.item() == pytest.approx(3 * getattr(terms, part).item(), rel=1e-6)


def test_the_terms_reach_what_they_are_for(model):
    # given a real forward
    output = model(LABELS)
    terms = loss_terms(output, LABELS, optim=OPTIM, model=model)

    # when each term alone goes backward
    def reached(term):
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(term, parameters.values(), retain_graph=True, allow_unused=True)
        return {name for name, grad in zip(parameters, found, strict=True) if grad is not None and grad.any()}

    # then
    routers = {f"blocks.{layer}.router.linear.weight" for layer in range(3)}
    experts = {f"blocks.{layer}.experts.{part}" for layer in range(3) for part in ("gate_up", "down")}
    assert routers <= reached(terms.z)
    assert routers <= reached(terms.lbl)
    assert reached(terms.xpop) == experts


def test_a_collapsed_router_costs_more_balance_and_an_undecided_one_the_least_z(model):
    def terms(logits):
        layers = tuple(logits.expand(2, 6, 4) for _ in range(3))
        return loss_terms(Output(torch.zeros(2, 6, 256), layers), LABELS, optim=OPTIM, model=model)

    sure, undecided = terms(torch.tensor([9.0, 9.0, 0.0, 0.0])), terms(torch.zeros(4))
    assert sure.lbl.item() == pytest.approx(2.0, rel=1e-3)  # all tokens on two of four experts
    assert undecided.z.item() == pytest.approx(math.log(4) ** 2, rel=1e-5)


def test_half_precision_is_made_wide_before_the_cross_entropy(model, output):
    half = Output(output.logits.bfloat16(), output.router_logits)
    terms = loss_terms(half, LABELS, optim=OPTIM, model=model)
    assert {term.dtype for term in terms} == {torch.float32}
