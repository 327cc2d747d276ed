"""Counts, entropies, MaxVio and populations: figures worked by hand, and nothing that waits for a device."""

import math
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import UsageError, moe
from trimtab.rules.router import figures
from trimtab.torch.router import populations


def test_counts_are_those_of_the_largest_logits():
    # given
    dice = random.Random(0)
    rows = [[dice.gauss(0, 1) for _ in range(7)] for _ in range(40)]
    mask = [t % 4 != 1 for t in range(40)]
    # when
    counts = moe.expert_counts(torch.tensor(rows), top_k=3, mask=torch.tensor(mask))
    # then
    by_hand = [0] * 7
    for row, real in zip(rows, mask, strict=True):
        for expert in sorted(range(7), key=lambda e: -row[e])[:3]:
            by_hand[expert] += real
    assert counts.dtype == torch.int64
    assert counts.tolist() == by_hand
    assert counts.sum().item() == sum(mask) * 3


def test_counts_of_layers_are_a_row_each():
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    assert moe.expert_counts([logits, -logits], top_k=1).tolist() == [[1, 1, 0], [1, 1, 0]]
    assert moe.expert_counts([logits], top_k=1).shape == (1, 3)
    with pytest.raises(UsageError, match=r"3 and 4 experts.*each layer by itself"):
        moe.expert_counts([logits, torch.zeros(2, 4)], top_k=1)


def test_counts_are_exact_where_float32_is_not():
    # given: more tokens than float32 counts one by one
    num_tokens = 2**24 + 3
    logits = torch.zeros(1, 2).expand(num_tokens, 2).add(torch.tensor([1.0, 0.0]))
    assert moe.expert_counts(logits, top_k=1).tolist() == [num_tokens, 0]


def test_a_uniform_router_sends_every_token_to_one_expert_and_only_the_counts_tell():
    # given
    logits = torch.zeros(64, 8)
    counts = moe.expert_counts(logits, top_k=1)
    # then: which expert it is torch.topk says
    assert sorted(counts.tolist()) == [0] * 7 + [64]
    assert moe.load_balancing_loss(logits, top_k=1).item() == pytest.approx(1.0)
    assert moe.router_z_loss(logits).item() == pytest.approx(math.log(8) ** 2)
    assert moe.token_entropy(logits).item() == pytest.approx(math.log(8))
    assert moe.load_entropy(counts).item() == 0.0
    assert moe.max_vio(counts).item() == 7.0


def test_max_vio_of_counts_that_float32_does_not_hold():
    assert moe.max_vio([2**24 + 1, 2**24 - 1]).item() == pytest.approx(2.0**-24)


@pytest.mark.parametrize(
    ("counts", "vio"),
    [
        ([628, 649, 658, 630, 668, 652, 634, 601], 668 / 640 - 1),
        ([654, 627, 632, 676, 586, 646, 647, 652], 676 / 640 - 1),
        ([781, 548, 647, 600, 636, 566, 713, 629], 781 / 640 - 1),
        ([8, 0], 1.0),
        ([3, 3, 3], 0.0),
    ],
    ids=["first layer", "second layer", "third layer", "one of two", "balanced"],
)
def test_max_vio_and_load_entropy_of_real_counts(counts, vio):
    entropy = -sum(n / sum(counts) * math.log(n / sum(counts)) for n in counts if n)
    for given in (counts, torch.tensor(counts), torch.tensor(counts, dtype=torch.float64)):
        assert moe.max_vio(given).item() == pytest.approx(vio, abs=1e-6)
        assert moe.load_entropy(given).item() == pytest.approx(entropy, abs=1e-6)


def test_figures_of_layers_are_one_each():
    counts = torch.tensor([[4, 0, 0, 0], [1, 1, 1, 1]])
    assert moe.max_vio(counts).tolist() == [3.0, 0.0]
    assert moe.load_entropy(counts).tolist() == pytest.approx([0.0, math.log(4)])
    assert moe.population_shares(counts, num_populations=2).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_figures_of_no_token_are_not_a_number():
    counts = torch.zeros(4, dtype=torch.int64)
    assert moe.max_vio(counts).isnan()
    assert moe.load_entropy(counts).isnan()
    assert moe.population_shares(counts, num_populations=2).isnan().all()


@pytest.mark.parametrize("counts", [[628, 649, 658, 630], [8, 0, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0]], ids=str)
def test_a_report_has_the_same_figures(counts):
    # given the figures that rules make of counts, without torch; where a tensor has NaN they have None
    def shown(tensor):
        return None if tensor.isnan().any() else pytest.approx(tensor.tolist(), abs=1e-6)

    shares = figures.population_shares(counts, num_populations=2)

    assert figures.max_vio(counts) == shown(moe.max_vio(counts))
    assert figures.load_entropy(counts) == shown(moe.load_entropy(counts))
    assert (None if shares is None else list(shares)) == shown(moe.population_shares(counts, num_populations=2))


def test_confidence_and_balance_are_two_figures():
    # given: tokens that are sure of different experts, and tokens that are sure of the same
    spread, same = 50 * torch.eye(4), torch.tensor([[50.0, 0.0, 0.0, 0.0]]).repeat(4, 1)
    # then
    assert moe.token_entropy([spread, same]).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert moe.load_entropy(moe.expert_counts([spread, same], top_k=1)).tolist() == pytest.approx([math.log(4), 0.0])


def test_an_expert_that_is_switched_off_has_no_part_in_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    assert moe.token_entropy(logits).item() == pytest.approx(math.log(2))


def test_token_entropy_is_no_term_to_train_on():
    assert not moe.token_entropy(torch.zeros(3, 4, requires_grad=True)).requires_grad


# Populations.


def test_shares_are_those_of_neighbouring_experts():
    shares = moe.population_shares([10, 20, 30, 15, 15, 10], num_populations=3)
    assert shares.tolist() == pytest.approx([0.3, 0.45, 0.25])
    assert moe.population_shares([3, 1], num_populations=1).tolist() == [1.0]


def cosine_by_hand(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_the_cosine_is_that_of_the_flattened_weights():
    # given: 4 experts in 2 populations, weights of two tensors
    generator = torch.Generator().manual_seed(0)
    up, down = (torch.randn(4, *shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (2, 3)))
    # when
    cosines = moe.population_cosine([up, (up, down)], num_populations=2)
    # then
    first, second = (part.flatten().tolist() for part in (up[:2], up[2:]))
    more, other = (part.flatten().tolist() for part in (down[:2], down[2:]))
    expected = [cosine_by_hand(first, second), cosine_by_hand(first + more, second + other)]
    assert cosines.tolist() == pytest.approx(expected, rel=1e-12)
    assert moe.population_cosine(up, num_populations=2).item() == pytest.approx(expected[0], rel=1e-12)


def test_of_three_populations_it_is_the_mean_of_the_pairs():
    weights = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    expected = (math.sqrt(0.5) + 0.0 + math.sqrt(0.5)) / 3
    assert moe.population_cosine(weights, num_populations=3).item() == pytest.approx(expected)


def test_the_cosine_has_its_gradient_and_zeros_have_a_finite_one():
    weights = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    torch.autograd.gradcheck(lambda weights: moe.population_cosine(weights, num_populations=2), weights)
    # given: one population is all zeros
    zeros = torch.zeros(2, 3, requires_grad=True)
    cosine = moe.population_cosine(zeros, num_populations=2)
    cosine.backward()
    assert cosine.item() == 0.0
    assert zeros.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1e15], ids=["small", "large"])
def test_the_cosine_does_not_depend_on_the_scale(scale):
    weights = torch.tensor([[3.0, 4.0], [4.0, 3.0]])
    assert moe.population_cosine(scale * weights, num_populations=2).item() == pytest.approx(24 / 25, rel=1e-5)


def test_no_more_than_a_slice_of_half_precision_weights_is_made_wide_with_a_gradient_or_without(monkeypatch):
    # given
    made = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = func(*args, **(kwargs or {}))
            if isinstance(given, torch.Tensor) and given.dtype == torch.float32:
                made.append(given.numel())
            return given

    monkeypatch.setattr(populations, "_MOST_WIDE", 64)
    weights = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    # when
    with Sizes():
        cosine = moe.population_cosine(weights, num_populations=2)
        cosine.backward()
    # then
    assert made
    assert max(made) <= 64
    wide = weights.detach().double().requires_grad_()
    expected = torch.cosine_similarity(*wide.reshape(2, -1), dim=0)
    expected.backward()
    assert cosine.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(weights.grad.double(), wide.grad, rtol=2**-8, atol=1e-7)


def test_half_precision_weights_are_summed_in_float32():
    weights = torch.full((2, 100_000), 1.0, dtype=torch.float16)
    cosine = moe.population_cosine(weights, num_populations=2)
    assert cosine.dtype == torch.float32
    assert cosine.item() == pytest.approx(1.0, abs=1e-6)  # in float16 the sum of squares is infinite


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: moe.population_shares([1, 2, 3], num_populations=2), r"is 2: .*divides the 3 experts"),
        (lambda: moe.population_shares([1, 2], num_populations=0), r"is 0 of type int"),
        (lambda: moe.population_shares([1, 2], num_populations=True), r"is True of type bool"),
        (lambda: moe.population_shares(torch.tensor(3), num_populations=1), r"shape \(\).*expected \(E,\)"),
        (lambda: moe.population_cosine(torch.ones(4, 2), num_populations=1), r"is 1 .*from 2 on"),
        (lambda: moe.population_cosine(torch.ones(4, 2), num_populations=3), r"is 3: .*divides the 4 experts"),
        (lambda: moe.population_cosine(torch.ones(4).long(), num_populations=2), r"floating-point.*torch.int64"),
        (lambda: moe.population_cosine([], num_populations=2), r"empty list"),
        (lambda: moe.population_cosine([()], num_populations=2), r"of no experts"),
        (
            lambda: moe.population_cosine([(torch.ones(4, 1), torch.ones(2, 1))], num_populations=2),
            r"of \[4, 2\] experts",
        ),
        (lambda: moe.max_vio(torch.tensor(1)), r"shape \(\).*expected \(E,\) or \(L, E\)"),
        (lambda: moe.load_entropy(torch.ones(3, dtype=torch.bool)), r"dtype torch.bool"),
    ],
    ids=[
        "uneven", "none", "a bool", "0-d counts", "one population", "no divisor", "integers", "no layers", "no parts",
        "unlike parts", "0-d load", "bools",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(call, said):
    with pytest.raises(UsageError, match=said):
        call()


# Waits.


class Waits(TorchDispatchMode):
    """Counts what needs a value on the host: reads, and operations whose output's size depends on values."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_by_mask = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        waiting = ("_local_scalar_dense", "nonzero", "_unique2", "equal", "is_nonzero", "bincount", "masked_select")
        if is_by_mask or func.__name__.split(".")[0] in waiting:
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_counter_sees_a_wait():
    with Waits() as waits:
        torch.ones(()).item()
        torch.ones(3)[torch.ones(3) > 0]
        torch.bincount(torch.tensor([1]))
    assert len(waits.seen) >= 3


def test_no_function_waits_for_the_device():
    # given
    layers = [torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2)]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    window = moe.WindowLoad()
    # when
    with Waits() as waits:
        counts = moe.expert_counts(layers, top_k=2, mask=mask)
        figures = [
            moe.max_vio(counts),
            moe.load_entropy(counts),
            moe.token_entropy(layers, mask=mask),
            moe.population_shares(counts, num_populations=2),
        ]
        terms = [
            moe.router_z_loss(layers, mask=mask).sum(),
            moe.population_cosine(layers[0][:4], num_populations=2),
            *(
                moe.load_balancing_loss(layers, top_k=2, convention=convention, mask=mask).sum()
                for convention in ("switch", "hf")
            ),
            moe.load_balancing_loss(layers, top_k=2, mask=mask, global_batch=True, window=window).sum(),
        ]
        sum(terms).backward()
    # then
    assert waits.seen == []
    assert len(figures) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_figures_stay_where_the_logits_are(dtype):
    # given: a device that holds no values, so that whoever looked at one would fail
    logits = torch.zeros(6, 4, device="meta", dtype=dtype)
    counts = moe.expert_counts(logits, top_k=2)
    for figure in (
        counts,
        moe.router_z_loss(logits),
        moe.load_balancing_loss(logits, top_k=2, global_batch=True, window=moe.WindowLoad()),
        moe.max_vio(counts),
        moe.token_entropy(logits),
    ):
        assert figure.device.type == "meta"
