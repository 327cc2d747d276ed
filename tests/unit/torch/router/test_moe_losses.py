"""Router z-loss and load balance are their definitions, in value and in gradient; the oracle is plain Python."""

import importlib
import math
import random

import pytest
import torch

from trimtab import UsageError, moe

CONVENTIONS = ["switch", "olmo", "megatron", "hf"]


def logits_of(num_tokens, num_experts, *, seed, scale=2.0):
    """Distinct numbers with short decimals, which every floating type of torch can hold apart in a row."""
    dice = random.Random(seed)
    rows = [[scale * dice.gauss(0, 1) for _ in range(num_experts)] for _ in range(num_tokens)]
    return torch.tensor(rows, dtype=torch.float64)


# The oracle: lists of floats.


def softmax(row):
    top = max(row)
    exps = [math.exp(x - top) for x in row]
    return [e / sum(exps) for e in exps]


def z_by_hand(rows, mask):
    kept = [row for row, real in zip(rows, mask, strict=True) if real]
    return sum(math.log(sum(math.exp(x) for x in row)) ** 2 for row in kept) / len(kept)


def shares_by_hand(rows, mask, top_k):
    """f, which sums to top_k, and P, which sums to 1."""
    kept = [row for row, real in zip(rows, mask, strict=True) if real]
    num_experts = len(kept[0])
    f, mean = [0.0] * num_experts, [0.0] * num_experts
    for row in kept:
        for expert in sorted(range(num_experts), key=lambda e: -row[e])[:top_k]:
            f[expert] += 1 / len(kept)
        for expert, p in enumerate(softmax(row)):
            mean[expert] += p / len(kept)
    return f, mean


def balance_by_hand(layers, mask, top_k, convention):
    if convention == "hf":  # not divided, the tokens of all layers together
        rows, times = [row for layer in layers for row in layer], len(layers)
        f, mean = shares_by_hand(rows, mask * times, top_k)
        return [len(f) * sum(a * b for a, b in zip(f, mean, strict=True))]
    values = []
    for layer in layers:
        f, mean = shares_by_hand(layer, mask, top_k)
        values.append(len(f) * sum(a * b for a, b in zip(f, mean, strict=True)) / top_k)
    return values


# Values.


def test_z_of_one_and_three_is_five_and_not_four():
    assert moe.router_z_loss(torch.tensor([[1.0], [3.0]])).item() == 5.0


def test_large_logits_have_a_finite_z_in_every_type():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        z = moe.router_z_loss(torch.tensor([[100.0, 0.0]], dtype=dtype))
        assert z.item() == 10000.0  # in float16 the square alone is near its largest number
        assert z.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_uniform_logits_give_the_square_of_the_log_of_the_experts():
    assert moe.router_z_loss(torch.zeros(64, 48)).item() == pytest.approx(14.9862, abs=1e-3)


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("is_masked", [False, True], ids=["all tokens", "masked"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_values_are_those_of_plain_python(convention, is_masked, top_k):
    # given
    layers = [logits_of(24, 6, seed=seed) for seed in (1, 2, 3)]
    mask = [is_masked is False or t % 5 != 0 for t in range(24)]
    given = torch.tensor(mask) if is_masked else None
    # when
    z = moe.router_z_loss(layers, mask=given)
    balance = moe.load_balancing_loss(layers, top_k=top_k, convention=convention, mask=given)
    # then
    rows = [layer.tolist() for layer in layers]
    assert z.tolist() == pytest.approx([z_by_hand(layer, mask) for layer in rows], rel=1e-12)
    assert balance.dim() == (0 if convention == "hf" else 1)
    assert balance.reshape(-1).tolist() == pytest.approx(balance_by_hand(rows, mask, top_k, convention), rel=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_one_layer_as_a_tensor_has_the_value_of_a_list_of_one(convention):
    logits = logits_of(10, 4, seed=5)
    alone = moe.load_balancing_loss(logits, top_k=2, convention=convention)
    listed = moe.load_balancing_loss([logits], top_k=2, convention=convention)
    assert alone.shape == ()
    assert listed.shape == (() if convention == "hf" else (1,))
    assert alone == listed.squeeze()


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("top_k", [1, 2])
def test_a_balanced_router_has_the_value_that_is_said(convention, top_k):
    # given: 4 tokens, each sure of its own two experts, which are neighbours on a ring
    logits = torch.stack([torch.tensor([3.0, 2.0, 0.0, 0.0]).roll(t) for t in range(4)]).double()
    # when
    value = moe.load_balancing_loss(logits, top_k=top_k, convention=convention)
    # then
    assert value.item() == pytest.approx(moe.balanced_value(convention, top_k=top_k), rel=1e-12)
    assert moe.balanced_value(convention, top_k=top_k) == (top_k if convention == "hf" else 1)


def test_two_layers_that_collapsed_apart_are_two_each_and_pool_to_one():
    first = torch.tensor([[20.0, -20.0]] * 8)
    assert moe.load_balancing_loss([first, -first], top_k=1).tolist() == pytest.approx([2.0, 2.0])
    assert moe.load_balancing_loss([first, -first], top_k=1, convention="hf").item() == pytest.approx(1.0)


def test_padding_is_left_out_of_the_load():
    # given: 4 tokens that are balanced over 4 experts, and 12 pads that all go to expert 0
    real = torch.full((4, 4), 0.1) + 0.6 * torch.eye(4)
    pads = torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(12, 1)
    logits = torch.cat([real, pads]).log()
    mask = torch.tensor([1] * 4 + [0] * 12)
    # then
    assert moe.load_balancing_loss(logits, top_k=1, mask=mask).item() == pytest.approx(1.0, abs=1e-6)
    assert moe.load_balancing_loss(logits, top_k=1).item() == pytest.approx(2.0125, abs=1e-4)


@pytest.mark.parametrize("module", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
@pytest.mark.parametrize("is_masked", [False, True], ids=["all tokens", "attention mask"])
def test_hf_is_what_hugging_face_computes(module, is_masked):
    # given: a batch of 3 sequences, the second padded on the right, the third on the left
    theirs = importlib.import_module(f"transformers.models.{module}.modeling_{module}").load_balancing_loss_func
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]) if is_masked else None
    layers = tuple(logits_of(15, 8, seed=seed).float().requires_grad_() for seed in (1, 2))
    others = tuple(layer.detach().clone().requires_grad_() for layer in layers)
    # when
    ours = moe.load_balancing_loss(layers, top_k=2, convention="hf", mask=mask)
    other = theirs(others, 8, 2, mask)
    ours.backward()
    other.backward()
    # then
    assert ours.item() == pytest.approx(other.item(), rel=1e-6)
    for layer, like in zip(layers, others, strict=True):
        torch.testing.assert_close(layer.grad, like.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_computed_in_float32(dtype):
    # given: logits that the type holds exactly, over so many tokens that a sum in it would be off by percents
    logits = torch.round(logits_of(4096, 8, seed=3).float() * 8) / 8
    narrow = logits.to(dtype)
    assert torch.equal(narrow.float(), logits)
    # then
    for figure in (
        moe.router_z_loss,
        moe.token_entropy,
        lambda logits: moe.load_balancing_loss(logits, top_k=2),
        lambda logits: moe.load_balancing_loss([logits], top_k=2, convention="hf"),
    ):
        assert figure(narrow).dtype == torch.float32
        assert torch.equal(figure(narrow), figure(logits))


def test_autocast_changes_nothing():
    logits = logits_of(2048, 8, seed=3).float()
    plain = moe.router_z_loss(logits), moe.load_balancing_loss(logits, top_k=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (moe.router_z_loss(logits), moe.load_balancing_loss(logits, top_k=2)) == plain


@pytest.mark.parametrize("shape", [(12, 5), (3, 4, 5), (2, 3, 2, 5)], ids=str)
def test_tokens_may_have_any_dimensions_before_the_experts(shape):
    flat = logits_of(12, 5, seed=1)
    mask = torch.arange(12) % 3 != 0
    for given in (mask, mask.view(shape[:-1]), mask.view(shape[:-1]).to(torch.int64)):
        assert moe.router_z_loss(flat.view(shape), mask=given) == moe.router_z_loss(flat, mask=mask)
        assert moe.load_balancing_loss(flat.view(shape), top_k=2, mask=given) == moe.load_balancing_loss(
            flat, top_k=2, mask=mask
        )


def test_layers_may_differ_in_experts_but_where_they_are_pooled():
    layers = [logits_of(6, 4, seed=1), logits_of(6, 8, seed=2)]
    assert moe.load_balancing_loss(layers, top_k=2).shape == moe.router_z_loss(layers).shape == (2,)
    with pytest.raises(UsageError, match=r"4 and 8 experts.*pools layers"):
        moe.load_balancing_loss(layers, top_k=2, convention="hf")


# Gradients.


@pytest.mark.parametrize("is_masked", [False, True], ids=["all tokens", "masked"])
def test_gradients_are_those_of_the_values(is_masked):
    mask = torch.arange(7) != 3 if is_masked else None
    logits = [logits_of(7, 4, seed=seed).requires_grad_() for seed in (1, 2)]
    torch.autograd.gradcheck(lambda *layers: moe.router_z_loss(layers, mask=mask), logits)
    for convention in CONVENTIONS:
        torch.autograd.gradcheck(
            lambda *layers, convention=convention: moe.load_balancing_loss(
                layers, top_k=2, convention=convention, mask=mask
            ),
            logits,
        )


def test_the_gradient_of_a_load_is_that_of_the_probabilities_alone():
    # given: expert 0 has three of four tokens, so f = [3/4, 1/4]
    logits = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    # when
    moe.load_balancing_loss(logits, top_k=1).backward()
    # then: d/dx of E * (f_0 p + f_1 (1 - p)) / T is E (f_0 - f_1) p (1 - p) / T, the other way for the other expert
    for row, gradient in zip(logits.tolist(), logits.grad.tolist(), strict=True):
        p = softmax(row)[0]
        assert gradient == pytest.approx([2 * 0.5 * p * (1 - p) / 4, -2 * 0.5 * p * (1 - p) / 4], rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_what_stands_at_a_padded_place_reaches_nothing(bad):
    # given
    clean = logits_of(6, 4, seed=1).requires_grad_()
    mask = torch.tensor([1, 1, 1, 1, 0, 0])
    dirty = clean.detach().clone()
    dirty[4:] = bad
    dirty.requires_grad_()
    for figure in (moe.router_z_loss, lambda logits, mask: moe.load_balancing_loss(logits, top_k=2, mask=mask)):
        # when
        clean.grad = dirty.grad = None
        values = figure(clean, mask=mask), figure(dirty, mask=mask)
        for value in values:
            value.backward()
        # then
        assert values[0] == values[1]
        assert torch.equal(clean.grad, dirty.grad)
        assert not dirty.grad[4:].any()
    assert torch.equal(moe.token_entropy(clean, mask=mask), moe.token_entropy(dirty, mask=mask))


@pytest.mark.parametrize("num_tokens", [0, 3], ids=["no token", "padding alone"])
@pytest.mark.parametrize("global_batch", [False, True], ids=["alone", "global"])
def test_no_real_token_is_zero_with_a_gradient_of_zeros(num_tokens, global_batch):
    logits = torch.full((num_tokens, 4), math.nan, requires_grad=True)
    mask = torch.zeros(num_tokens, dtype=torch.bool)
    z = moe.router_z_loss(logits, mask=mask)
    balance = moe.load_balancing_loss(logits, top_k=1, mask=mask, global_batch=global_batch)
    (z + balance).backward()
    assert (z.item(), balance.item()) == (0.0, 0.0)
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_nan_of_a_real_token_is_not_hidden():
    logits = logits_of(6, 4, seed=1)
    logits[2, 1] = math.nan
    mask = torch.tensor([1, 1, 1, 1, 1, 0])
    assert moe.router_z_loss(logits, mask=mask).isnan()
    for convention in CONVENTIONS:
        assert moe.load_balancing_loss(logits, top_k=2, convention=convention, mask=mask).isnan()
        assert moe.load_balancing_loss(logits, top_k=2, convention=convention, mask=mask, global_batch=True).isnan()
    assert moe.token_entropy(logits, mask=mask).isnan()


# Refusals.

LOGITS = torch.zeros(6, 4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: moe.router_z_loss(torch.zeros(6, 4, dtype=torch.int64)), r"logits is a tensor of torch.int64"),
        (lambda: moe.router_z_loss([LOGITS, [1.0]]), r"logits\[1\] is a list, expected"),
        (lambda: moe.router_z_loss(torch.zeros(6)), r"shape \(6,\), expected.*\(T, E\)"),
        (lambda: moe.router_z_loss(torch.zeros(6, 0)), r"shape \(6, 0\)"),
        (lambda: moe.router_z_loss([]), r"empty list"),
        (lambda: moe.router_z_loss(LOGITS, mask=torch.ones(5)), r"mask must be a bool.*torch.float32.*`mask == 0`"),
        (lambda: moe.router_z_loss(LOGITS, mask=[1] * 6), r"mask must be a bool.*found list"),
        (
            lambda: moe.router_z_loss(LOGITS, mask=torch.ones(5, dtype=torch.bool)),
            r"mask has shape \(5,\), expected \(6,\) for logits of shape \(6, 4\)",
        ),
        (
            lambda: moe.router_z_loss(torch.zeros(2, 3, 4), mask=torch.ones(3, 2, dtype=torch.bool)),
            r"mask has shape \(3, 2\), expected \(6,\) or \(2, 3\)",
        ),
        (
            lambda: moe.router_z_loss([LOGITS, torch.zeros(5, 4)], mask=torch.ones(6, dtype=torch.bool)),
            r"logits\[1\] of shape \(5, 4\)",
        ),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=0), r"top_k is 0.*from 1 to the 4 experts"),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=5), r"top_k is 5"),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=True), r"top_k is True"),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=1.0), r"top_k is 1.0"),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=1, convention="st-moe"), r"'switch', 'olmo'.*found 'st-moe'"),
        (lambda: moe.balanced_value("mean", top_k=1), r"found 'mean'"),
        (lambda: moe.load_balancing_loss(LOGITS, top_k=1, window=moe.WindowLoad()), r"window goes with global_batch"),
        (
            lambda: moe.load_balancing_loss(LOGITS, top_k=1, process_group=object()),
            r"process_group goes with global_batch",
        ),
    ],
    ids=[
        "integer logits", "a list in a list", "1-d", "no experts", "no layers", "float mask", "list mask", "short mask",
        "turned mask", "mask of another layer", "k 0", "k beyond", "k bool", "k float", "convention", "no balance",
        "window alone", "group alone",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(call, said):
    with pytest.raises(UsageError, match=said):
        call()


# Cost.


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_it_compiles_whole(convention):
    # given
    logits, mask = logits_of(8, 4, seed=1).float().requires_grad_(), torch.arange(8) < 6

    def terms(logits, mask):
        balance = moe.load_balancing_loss([logits, 2 * logits], top_k=2, convention=convention, mask=mask)
        return moe.router_z_loss(logits, mask=mask) + balance.sum()

    # when
    compiled = torch.compile(terms, fullgraph=True, backend="aot_eager", dynamic=False)(logits, mask)
    plain = terms(logits, mask)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (compiled, plain)]
    # then
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close(*gradients)
