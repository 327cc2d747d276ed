"""Which parameters a step is about, and what it leaves on those beside it."""

import math

import pytest
import torch
from torch import nn

from trimtab.guard.words import GuardWords
from trimtab.torch.stepped import SteppedParameters


def gradient(parameter, value):
    parameter.grad = torch.full_like(parameter, value)


def test_what_is_stepped_comes_in_the_order_of_the_model_and_what_only_the_optimizer_knows_last():
    model, own = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([own, *reversed(list(model[1].parameters()))], lr=0.1)

    found = SteppedParameters(model, optimizer).now()

    assert [id(parameter) for parameter in found] == [id(model[1].weight), id(model[1].bias), id(own)]


@pytest.mark.parametrize("where", [True, torch.tensor(True)], ids=["host", "device"])
def test_a_drop_takes_away_what_is_not_finite_and_began_with_the_window(where):
    # given gradients of NaN beside the optimizer: of two parameters that had none when the window began, one had
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    stepped = SteppedParameters(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    gradient(model[1].weight, 1.0)
    stepped.begin_window()
    gradient(model[0].weight, math.nan)
    gradient(model[1].weight, math.nan)
    gradient(model[1].bias, math.nan)
    gradient(model[2].weight, 2.0)

    # when
    stepped.clear_beside(where=where)

    # then what is the optimizer's, what was there before, and what is finite stays
    assert model[0].weight.grad.isnan().all()
    assert model[1].weight.grad.isnan().all()
    assert model[2].weight.grad.item() == 2.0
    left = model[1].bias.grad
    assert left is None if where is True else left.item() == 0.0


@pytest.mark.parametrize("where", [False, torch.tensor(False)], ids=["host", "device"])
def test_a_step_that_is_none_of_the_norms_leaves_all_gradients_beside_it(where):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    stepped = SteppedParameters(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    stepped.begin_window()
    gradient(model[1].weight, math.nan)

    stepped.clear_beside(where=where)

    assert model[1].weight.grad.isnan().all()


def test_an_optimizer_of_a_part_that_no_gradient_has_reached_is_said_and_not_refused(caplog):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    stepped = SteppedParameters(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    gradient(model[1].weight, 1.0)

    words = GuardWords(rank=0)
    for step in (3, 4):
        stepped.look_for_motion(stepped.now(), words=words, step=step)

    assert caplog.text.count("no parameter of the optimizer has a gradient") == 1
    assert "Step 3:" in caplog.text
