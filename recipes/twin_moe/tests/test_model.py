"""The model is a mixture of experts as the equations say: a plain loop over tokens and experts gives what it gives.

The oracle is written in sums over single tokens, in float64, and shares no code with the model.
"""

import math
from dataclasses import replace

import pytest
import torch

from recipes.twin_moe.config import ModelConfig, read_preset
from recipes.twin_moe.model import Experts, TwinMoe

SMALL = ModelConfig(dim=8, num_layers=2, num_heads=2, num_experts=6, top_k=2, num_populations=2, expert_dim=5)


def config(model=SMALL, *, seed=0):
    tiny = read_preset("tiny")
    return replace(tiny, seed=seed, model=model, data=replace(tiny.data, num_tokens=7))


def token_ids(*, seed=0):
    return torch.randint(0, 256, (3, 7), generator=torch.Generator().manual_seed(seed))


def norm(vector, weight):
    mean_square = sum(value**2 for value in vector.tolist()) / len(vector)
    return vector / math.sqrt(mean_square + torch.finfo(vector.dtype).eps) * weight


def attend(block, normed):
    """Of one row, (T, D)."""
    dim = normed.shape[1]
    queries, keys, values = (normed @ block.queries_keys_values.weight.T).split(dim, dim=1)
    size = dim // block.num_heads
    mixed = torch.zeros_like(normed)
    for head in range(block.num_heads):
        part = slice(head * size, (head + 1) * size)
        for place in range(len(normed)):
            scores = [float(queries[place, part] @ keys[seen, part]) / math.sqrt(size) for seen in range(place + 1)]
            total = sum(math.exp(score) for score in scores)
            for seen, score in enumerate(scores):
                mixed[place, part] += math.exp(score) / total * values[seen, part]
    return mixed @ block.attention_out.weight.T


def consult(experts, token, logits, *, top_k):
    """One token's experts, one after the other."""
    chosen = sorted(range(len(logits)), key=lambda expert: -logits[expert])[:top_k]
    total = sum(math.exp(logits[expert]) for expert in chosen)
    width = experts.down.shape[1]
    answer = torch.zeros_like(token)
    for expert in chosen:
        both = token @ experts.gate_up[expert]
        gate, up = both[:width], both[width:]
        inner = gate / (1 + (-gate).exp()) * up
        answer += math.exp(logits[expert]) / total * (inner @ experts.down[expert])
    return answer


@torch.no_grad()
def oracle(model, input_ids):
    """Logits (B, T, 256) and each layer's router logits."""
    rows, all_logits = [], [[] for _ in model.blocks]
    for ids in input_ids:
        hidden = torch.stack([model.embedding.weight[byte] + model.position.weight[t] for t, byte in enumerate(ids)])
        for layer, block in enumerate(model.blocks):
            normed = torch.stack([norm(token, block.attention_norm.weight) for token in hidden])
            hidden = hidden + attend(block, normed)
            normed = torch.stack([norm(token, block.experts_norm.weight) for token in hidden])
            logits = normed @ block.router.linear.weight.T
            all_logits[layer].append(logits)
            hidden = hidden + torch.stack(
                [
                    consult(block.experts, token, of_token.tolist(), top_k=block.router.top_k)
                    for token, of_token in zip(normed, logits, strict=True)
                ]
            )
        rows.append(torch.stack([norm(token, model.norm.weight) for token in hidden]) @ model.head.weight.T)
    return torch.stack(rows), [torch.stack(layer) for layer in all_logits]


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0], ids=["as initialised", "choosing", "nearly one-hot"])
def test_the_model_gives_what_a_loop_over_tokens_and_experts_gives(spread):
    # given routers from undecided to sure
    model = TwinMoe(config()).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for router in model.routers:
            noise = torch.randn(router.linear.weight.shape, generator=generator, dtype=torch.float64)
            router.linear.weight.add_(spread * noise)

    # when
    output = model(token_ids())
    logits, router_logits = oracle(model, token_ids())

    # then
    torch.testing.assert_close(output.logits, logits, rtol=0, atol=1e-10)
    for layer, expected in zip(output.router_logits, router_logits, strict=True):
        torch.testing.assert_close(layer, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("top_k", [1, 4], ids=["one expert a token", "all experts"])
def test_other_numbers_of_experts_a_token_are_the_loops_too(top_k):
    model = TwinMoe(config(replace(SMALL, num_experts=4, top_k=top_k))).double()
    torch.testing.assert_close(model(token_ids()).logits, oracle(model, token_ids())[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("indices", [[[0, 1], [2, 1], [0, 5]], [[3, 4], [3, 4], [4, 3]]], ids=["spread", "crowded"])
def test_the_gradients_of_the_dispatch_are_those_of_finite_differences(indices):
    experts = Experts(replace(SMALL, dim=2, expert_dim=2)).double()
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    chosen = torch.tensor(indices)

    def outcome(tokens, weights, gate_up, down):
        parameters = {"gate_up": gate_up, "down": down}
        return torch.func.functional_call(experts, parameters, (tokens, weights, chosen))

    assert torch.autograd.gradcheck(outcome, (random(3, 2), random(3, 2), random(6, 2, 4), random(6, 2, 2)))


def test_an_expert_that_no_token_reaches_gets_a_gradient_of_zeros():
    experts = Experts(SMALL)
    torch.nn.init.normal_(experts.gate_up)
    torch.nn.init.normal_(experts.down)
    experts(torch.randn(4, 8), torch.full((4, 2), 0.5), torch.tensor([[0, 1]] * 4)).sum().backward()
    assert experts.down.grad[:2].abs().min() > 0
    assert not experts.down.grad[2:].any()
    assert not experts.gate_up.grad[2:].any()


def test_a_byte_sees_none_behind_it():
    model = TwinMoe(config())
    ids = token_ids()
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 256
    before, after = model(ids).logits, model(changed).logits
    # Not bit for bit: another load of the experts is another size of their matrices.
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-6)
    assert (before[:, 4:] - after[:, 4:]).abs().amax(-1).min() > 1e-4


def test_routers_begin_undecided():
    tiny = read_preset("tiny")
    model = TwinMoe(tiny)
    ids = torch.randint(0, 256, (4, 128), generator=torch.Generator().manual_seed(0))
    undecided = math.log(tiny.model.num_experts) ** 2
    output = model(ids)
    for logits in output.router_logits:
        z = logits.logsumexp(-1).square().mean().item()
        assert z == pytest.approx(undecided, rel=0.05)
    ce = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), ids.flatten()).item()
    assert ce == pytest.approx(math.log(256), rel=0.02)


def test_a_router_gives_logits_then_weights_that_sum_to_one_then_the_chosen_experts():
    router = TwinMoe(config()).routers[0]
    logits, weights, indices = router(torch.randn(3, 7, 8))
    assert logits.shape == (3, 7, 6)
    assert indices.shape == weights.shape == (3, 7, 2)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 7))
    assert indices.dtype == torch.int64


def test_under_autocast_router_logits_are_float32_and_the_experts_half():
    model = TwinMoe(config())
    with torch.autocast("cpu", torch.bfloat16):
        output = model(token_ids())
    assert {logits.dtype for logits in output.router_logits} == {torch.float32}
    assert output.logits.dtype == torch.bfloat16
    torch.testing.assert_close(output.logits.float(), model(token_ids()).logits, rtol=0, atol=0.05)


def test_equal_seeds_give_equal_weights_and_other_seeds_others_whatever_was_drawn_before():
    torch.manual_seed(5)
    first = TwinMoe(config()).state_dict()
    torch.manual_seed(6)
    again, other = TwinMoe(config()).state_dict(), TwinMoe(config(seed=1)).state_dict()
    assert all(first[name].equal(again[name]) for name in first)
    assert not first["head.weight"].equal(other["head.weight"])


def test_making_a_model_leaves_the_processs_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    TwinMoe(config())
    assert torch.rand(4).equal(expected)


def test_two_trainings_of_one_seed_are_equal_bit_for_bit():
    def trained():
        model = TwinMoe(config())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for seed in range(5):
            output = model(token_ids(seed=seed))
            (output.logits.square().mean() + sum(logits.square().mean() for logits in output.router_logits)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    first, again = trained(), trained()
    assert all(first[name].equal(again[name]) for name in first)


def test_parameters_are_counted_as_those_that_act_on_a_token():
    model = TwinMoe(config())
    layer = 4 * 8 * 8 + 2 * 8 + 6 * 8  # attention, norms, router
    expert = 3 * 8 * 5
    rest = 2 * 256 * 8 + 7 * 8 + 8
    assert model.num_parameters() == (rest + 2 * (layer + 6 * expert), rest + 2 * (layer + 2 * expert))
