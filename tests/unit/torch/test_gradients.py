"""Gradients are scaled, measured, clipped and taken away as torch itself would, sparse and sharded ones included."""

import copy
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.torch.gradients import (
    clip_gradients,
    drop_gradients,
    gradient_norms,
    scale_gradients,
)

WORKER = Path(__file__).with_name("gradients_of_a_rank.py")


def parameters_with(*gradients):
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return [*parameters, nn.Parameter(torch.zeros(2))]  # the last has no gradient


def copies_of(parameters):
    theirs = copy.deepcopy(parameters)
    for ours, other in zip(parameters, theirs, strict=True):
        other.grad = None if ours.grad is None else ours.grad.clone()
    return theirs


def test_the_norms_are_those_of_all_gradients_together_and_of_each():
    norms = gradient_norms(parameters_with(torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])))

    assert norms.total.item() == 5.0
    assert norms.norms.tolist() == [3.0, 4.0, 0.0]
    assert norms.first_nonfinite.item() == -1


@pytest.mark.parametrize("parameters", [[], parameters_with()], ids=["no parameter", "no gradient"])
def test_without_a_gradient_the_norm_is_zero(parameters):
    norms = gradient_norms(parameters)

    assert norms.total.shape == ()
    assert norms.total.item() == 0.0
    assert norms.norms.tolist() == [0.0] * len(parameters)
    assert norms.first_nonfinite.item() == -1


KINDS = {
    "float32": [torch.float32] * 5,
    "bfloat16": [torch.bfloat16] * 5,
    "float64": [torch.float64] * 5,
    "mixed": [torch.float32, torch.bfloat16, torch.float32, torch.float64, torch.bfloat16],
}


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 100.0, math.inf])
@pytest.mark.parametrize("dtypes", KINDS.values(), ids=KINDS.keys())
def test_measuring_and_clipping_are_torchs_own_bit_for_bit(dtypes, max_norm):
    # Given
    generator = torch.Generator().manual_seed(7)
    shapes = [(7,), (3, 5), (64, 33), (2, 2, 2), (1,)]
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    parameters = parameters_with(*gradients)
    theirs = copies_of(parameters)

    # When
    norms = gradient_norms(parameters)
    clip_gradients(parameters, max_norm=max_norm, norm=norms.total)

    # Then
    their_norm = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert norms.total.dtype == their_norm.dtype
    assert torch.equal(norms.total, their_norm)
    for ours, other in zip(parameters, theirs, strict=True):
        assert (ours.grad is None) == (other.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, other.grad)
    each = [gradient.norm().double().item() for gradient in gradients]
    assert norms.norms.double().tolist() == pytest.approx([*each, 0.0], rel=1e-2)


def test_many_gradients_of_two_dtypes_are_added_up_in_torchs_order():
    # One seed would agree by chance: 60 numbers in another order give the same last bit one time in two.
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        gradients = [torch.randn(9, generator=generator) * 10.0 ** (place % 3) for place in range(60)]
        parameters = parameters_with(*[g if place % 2 else g.double() for place, g in enumerate(gradients)])

        assert torch.equal(gradient_norms(parameters).total, nn.utils.clip_grad_norm_(parameters, 1.0))


def test_sparse_gradients_beside_dense_ones_are_measured_and_clipped_as_if_they_were_dense():
    # Given: the sparse one names a row twice
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1, 1, 2]]), torch.tensor([[3.0], [1.0], [0.0]]), (4, 1), check_invariants=True
    )
    table, dense = nn.Parameter(torch.zeros(4, 1)), nn.Parameter(torch.zeros(1))
    table.grad, dense.grad = sparse, torch.tensor([3.0])

    # When
    norms = gradient_norms([table, dense])
    clip_gradients([table, dense], max_norm=1.0, norm=norms.total)
    scale_gradients([table, dense], 2.0)

    # Then
    assert norms.total.item() == 5.0
    assert norms.norms.tolist() == [4.0, 3.0]
    assert table.grad.is_sparse
    assert table.grad.to_dense().flatten().tolist() == pytest.approx([0.0, 1.6, 0.0, 0.0], rel=1e-5)
    assert dense.grad.tolist() == pytest.approx([1.2], rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_gradient_that_is_not_finite_is_found_by_its_place(value):
    # Given: the one without a gradient stands before it
    without, good = nn.Parameter(torch.zeros(2)), parameters_with(torch.ones(2))[0]
    bad, also_bad, _ = parameters_with(torch.tensor([1.0, value]), torch.tensor([value]))
    parameters = [without, good, bad, good, also_bad]

    # Then
    assert gradient_norms(parameters).first_nonfinite.item() == 2
    assert not math.isfinite(gradient_norms(parameters).total)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_gradient_that_is_not_finite_is_found_wherever_it_stands(place):
    gradients = [torch.full((2,), math.nan if place == other else 1.0) for other in range(3)]
    parameters = [nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient

    assert gradient_norms(parameters).first_nonfinite.item() == place


def test_a_finite_gradient_whose_norm_overflows_is_found_as_well():
    norms = gradient_norms(parameters_with(torch.ones(2), torch.full((2,), 1e25)))

    assert norms.norms.tolist() == [pytest.approx(math.sqrt(2)), math.inf, 0.0]
    assert norms.first_nonfinite.item() == 1


def test_nothing_is_named_where_only_the_norm_of_all_together_overflows():
    norms = gradient_norms(parameters_with(*[torch.full((1,), 60000.0, dtype=torch.float16)] * 2))

    assert norms.total.item() == math.inf
    assert norms.first_nonfinite.item() == -1


def test_gradients_are_measured_scaled_and_clipped_without_a_look_of_the_host():
    # On the meta device there is no value to look at.
    parameters = [nn.Parameter(torch.zeros(3, device="meta")) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.zeros(3, device="meta")

    norms = gradient_norms(parameters)
    scale_gradients(parameters, torch.ones((), device="meta"))
    clip_gradients(parameters, max_norm=1.0, norm=norms.total)

    assert norms.first_nonfinite.device.type == "meta"


def test_a_dropped_step_moves_nothing_where_zero_gradients_would():
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1)
    weight.grad = torch.ones(1)
    optimizer.step()
    before, steps = weight.item(), optimizer.state[weight]["step"].item()

    drop_gradients([weight])
    optimizer.step()
    assert (weight.item(), optimizer.state[weight]["step"].item()) == (before, steps)

    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() != before


# On two ranks.


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(WORKER)


@pytest.fixture(scope="module")
def alone():
    """Norms of the same step in one process: total, and of each parameter."""
    spec = importlib.util.spec_from_file_location("gradients_of_a_rank", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    model = worker.net()
    worker.loss_of(model, worker.rows()).backward()
    each = [0.0 if p.grad is None else math.sqrt((p.grad**2).sum().item()) for p in model.parameters()]
    return math.hypot(*each), each


HOSTS = ["ddp", "fsdp2", "hsdp 1x2", "hsdp 2x1"]


@pytest.mark.parametrize("host", HOSTS)
def test_the_norms_on_two_ranks_are_those_of_one_process(pair, alone, host):
    first, second = pair.call("measured", host=host)

    total, each = alone
    assert first == second
    assert first["is_plain"]
    assert first["total"] == pytest.approx(total, rel=1e-12)
    assert first["norms"] == pytest.approx(each, rel=1e-12)
    assert first["first_nonfinite"] == -1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_finite_in_the_shard_of_one_rank_is_named_alike_by_both(pair, rank, value):
    first, second = pair.call("measured", host="fsdp2", spoilt_rank=rank, spoilt=2, value=value)

    for measured in (first, second):
        assert measured["first_nonfinite"] == 2
        assert not math.isfinite(measured["total"])
        assert [math.isfinite(norm) for norm in measured["norms"]] == [True, True, False, True, True, True]


def test_sharded_gradients_beside_a_plain_one_are_measured_and_clipped_together(pair, alone):
    # When
    first, second = pair.call("measured", host="mixed")
    clipped, _ = pair.call("clipped_mixed")

    # Then: the plain one stands second, and has the norm 5
    total, each = alone
    assert first == second
    assert first["total"] == pytest.approx(math.hypot(total, 5.0), rel=1e-12)
    assert first["norms"] == pytest.approx([each[0], 5.0, *each[1:]], rel=1e-12)
    assert clipped == pytest.approx({"clipped": 1.0, "scaled": 3.0}, rel=1e-5)


@pytest.mark.parametrize("host", HOSTS)
def test_measuring_and_clipping_on_two_ranks_are_torchs_own_bit_for_bit(pair, host):
    for answer in pair.call("clipped", host=host):
        assert answer == {"norm": True, "clipped": True, "scaled": True}


@pytest.mark.parametrize("by_tensor", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_vetoed_step_leaves_no_trace_on_two_ranks(pair, host, fused, by_tensor):
    for answer in pair.call("vetoed", host=host, fused=fused, by_tensor=by_tensor):
        assert answer == {"stands": True, "goes on": True, "moved": True}
