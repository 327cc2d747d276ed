"""Which steps of an optimizer are dropped, by what was judged since its own last one."""

import gc
import logging
import math
import weakref

import pytest
import torch
from torch import nn

from trimtab.guard.words import GuardWords
from trimtab.torch.beside import ParametersBeside
from trimtab.torch.guarded_steps import GuardedSteps
from trimtab.values import STEP_REASONS


def counts(judged, kept, skipped):
    return torch.tensor([judged, kept, skipped])


NEVER = torch.tensor([-1, -1, -1])


def make():
    model = nn.Linear(2, 1)
    steps = GuardedSteps(model, beside=ParametersBeside(model), words=GuardWords(rank=0))
    return model, torch.optim.SGD(model.parameters(), lr=1.0), steps


def stepped(model, optimizer, steps, *, since_begin, gradient=1.0):
    """Whether the weights moved; the words of the step are said."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    before = model.weight.detach().clone()
    facts, tell = steps.before_step(optimizer, counts=since_begin, begun=NEVER)
    optimizer.step()
    tell(facts.tolist())
    return not torch.equal(model.weight.detach(), before)


@pytest.mark.parametrize(
    ("since", "gradient", "expected", "said"),
    [
        (counts(2, 1, 1), 1.0, True, None),
        (counts(2, 0, 2), 1.0, False, None),  # the skips were said
        (counts(2, 0, 0), 1.0, False, "no supervised token"),
        (counts(2, 2, 0), math.inf, False, "gradient such as this: weight"),
        (counts(0, 0, 0), math.inf, True, None),  # nothing was judged
    ],
    ids=["kept", "all skipped", "no tokens", "nonfinite", "unjudged"],
)
def test_a_step_is_dropped_for_what_came_before_it(caplog, since, gradient, expected, said):
    caplog.set_level(logging.WARNING, logger="trimtab")
    assert stepped(*make(), since_begin=since, gradient=gradient) == expected
    if said is None:
        assert not caplog.messages
    else:
        [line] = caplog.messages
        assert "Step 1" in line
        assert said in line.replace("parameter with such a gradient", "gradient such as this")


def test_each_optimizer_has_a_window_of_its_own():
    model, often, steps = make()
    rare = torch.optim.SGD(model.parameters(), lr=1.0)
    assert stepped(model, often, steps, since_begin=counts(1, 1, 0))
    assert not stepped(model, often, steps, since_begin=counts(2, 1, 1))
    assert stepped(model, rare, steps, since_begin=counts(2, 1, 1))


def test_beside_a_gradient_scaler_a_norm_that_is_not_finite_is_its_overflow_only_where_it_saw_one():
    model, optimizer, steps = make()
    optimizer.found_inf = torch.zeros(())
    facts, _ = steps.before_step(optimizer, counts=counts(1, 1, 0), begun=NEVER)
    assert STEP_REASONS[int(facts[0])] == "stepped"
    # a norm that overflows although the scaler has seen finite gradients alone
    model.weight.grad = torch.full_like(model.weight, 1e30)
    facts, _ = steps.before_step(optimizer, counts=counts(2, 2, 0), begun=NEVER)
    assert STEP_REASONS[int(facts[0])] == "nonfinite_norm"
    optimizer.found_inf = torch.ones(())
    facts, _ = steps.before_step(optimizer, counts=counts(3, 3, 0), begun=NEVER)
    assert STEP_REASONS[int(facts[0])] == "scaler_overflow"


def test_an_optimizer_of_other_parameters_is_let_be():
    _, optimizer, steps = make()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    assert (steps.holds(optimizer), steps.holds(other)) == (True, False)


def test_an_optimizer_that_has_stepped_is_let_go_with_its_moments():
    model, optimizer, steps = make()
    assert stepped(model, optimizer, steps, since_begin=counts(1, 1, 0))
    gone = weakref.ref(optimizer)

    del optimizer
    gc.collect()

    assert gone() is None
    # and the next one begins anew
    assert stepped(model, torch.optim.SGD(model.parameters(), lr=1.0), steps, since_begin=counts(2, 2, 0))
