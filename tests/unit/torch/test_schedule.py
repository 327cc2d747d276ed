"""Learning rate and loss scale at the moment of a step."""

import math

import pytest
import torch
from torch import nn

from trimtab.torch.schedule import current_lr, loss_scale


def test_a_learning_rate_that_is_a_tensor_is_copied():
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))

    lr = current_lr(optimizer)
    optimizer.param_groups[0]["lr"].mul_(2)

    assert lr.item() == 0.5


@pytest.mark.parametrize(("enabled", "before", "after"), [(True, 8.0, 4.0), (False, 1.0, 1.0)])
def test_the_scale_of_a_scaler_is_a_copy_that_an_overflow_lowers(enabled, before, after):
    # Given
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
    scale = loss_scale(scaler, device="cpu")

    # When
    scaler.scale(weight * math.inf).sum().backward()
    scaler.step(optimizer)
    scaler.update()

    # Then
    assert scale.item() == before
    assert loss_scale(scaler, device="cpu").item() == after
