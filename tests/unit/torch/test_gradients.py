"""Gradients are scaled, measured, clipped and taken away as torch itself would, sparse ones included."""

import copy
import math

import pytest
import torch
from torch import nn

from trimtab.torch.gradients import (
    clip_gradients,
    current_lr,
    drop_gradients,
    first_nonfinite,
    scale_gradients,
    total_norm,
)


def parameters_with(*gradients):
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return [*parameters, nn.Parameter(torch.zeros(2))]  # the last has no gradient


def test_the_norm_is_that_of_all_gradients_together():
    assert total_norm(parameters_with(torch.tensor([3.0]), torch.tensor([[0.0, 4.0]]))).item() == 5.0


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 100.0, math.inf])
def test_clipping_is_torchs_own_bit_for_bit(max_norm):
    parameters = parameters_with(torch.randn(7), torch.randn(3, 5))
    theirs = copy.deepcopy(parameters)
    for ours, other in zip(parameters, theirs, strict=True):
        other.grad = None if ours.grad is None else ours.grad.clone()

    clip_gradients(parameters, max_norm=max_norm, norm=total_norm(parameters))
    nn.utils.clip_grad_norm_(theirs, max_norm)

    for ours, other in zip(parameters, theirs, strict=True):
        assert (ours.grad is None) == (other.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, other.grad)


def test_a_sparse_gradient_with_a_row_twice_is_measured_as_the_sum_that_it_is():
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([[3.0], [1.0]]), (4, 1), check_invariants=True
    )
    parameter = nn.Parameter(torch.zeros(4, 1))
    parameter.grad = sparse

    assert total_norm([parameter]).item() == 4.0
    scale_gradients([parameter], 0.5)
    assert parameter.grad.to_dense().flatten().tolist() == [0.0, 2.0, 0.0, 0.0]


def test_the_first_gradient_that_is_not_finite_is_named():
    good, bad, _ = parameters_with(torch.ones(2), torch.tensor([1.0, math.inf]))

    assert first_nonfinite([("good", good), ("bad", bad), ("also bad", bad)]) == "bad"
    assert first_nonfinite([("good", good)]) is None


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


def test_a_learning_rate_that_is_a_tensor_is_copied():
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))

    lr = current_lr(optimizer)
    optimizer.param_groups[0]["lr"].mul_(2)

    assert lr.item() == 0.5
