"""The zero that takes a loss's place, against everything that multiplying by zero gets wrong."""

import math

import pytest
import torch
from torch import nn

from trimtab.torch.skip import anchored_zero, statistics_buffers


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_the_zero_is_zero_and_finite_where_a_parameter_is_not(poison):
    poisoned = nn.Parameter(torch.tensor([1.0, poison]))
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    zero = anchored_zero([poisoned, frozen, half], like=torch.tensor(3.0))
    zero.backward()

    assert (zero.item(), zero.dtype) == (0.0, torch.float32)
    assert poisoned.grad.tolist() == [0.0, 0.0]
    assert half.grad.tolist() == [0.0, 0.0]
    assert frozen.grad is None


def test_the_zero_of_a_model_without_a_trainable_parameter_can_be_called_backward_on():
    anchored_zero([], like=torch.tensor(1.0)).backward()


def test_gradients_that_are_there_keep_their_bits():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1e-45, -3.5, 1e38])

    anchored_zero([weight], like=torch.tensor(0.0)).backward()

    assert weight.grad.tolist() == torch.tensor([1e-45, -3.5, 1e38]).tolist()


def test_modules_with_running_statistics_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))

    assert statistics_buffers(model) == ["1"]
