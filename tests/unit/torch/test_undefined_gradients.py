"""Parameters that backward reaches without a gradient, as under DDP where a loss leaves out an output of the model."""

import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, LossGuard, Run


class Sink(torch.autograd.Function):
    """What DDP hands all outputs of a model through: one that no loss is made of gets no gradient back, not a zero."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.set_materialize_grads(False)
        return one.clone(), other.clone()

    @staticmethod
    def backward(ctx, one, other):
        return one, other


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.v = nn.Parameter(torch.ones(3))

    def forward(self):
        loss, _ = Sink.apply(self.w.square(), self.v)
        return loss


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("factor", [1.0, math.nan], ids=["kept", "skipped"])
def test_a_run_leaves_such_a_parameter_alone(decide, factor):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    guard = GuardConfig(multiplier=2.0, decide=decide)
    with Run(None, model=net, optimizer=optimizer, guard=guard, record=False) as run:
        run.micro_batch(net() * factor, per="sample", rows=[0, 1, 2]).backward()
        assert net.v.grad is None
        outcome = run.step()

    assert outcome.reason == ("stepped" if factor == 1.0 else "all_skipped")
    assert net.v.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("factor", [1.0, math.nan], ids=["kept", "skipped"])
def test_a_guard_alone_leaves_such_a_parameter_alone(factor):
    net = Net()
    guard = LossGuard(multiplier=2.0, model=net)

    guard(net().sum() * factor).backward()

    assert net.v.grad is None
    assert net.w.grad.tolist() == ([2.0] * 3 if factor == 1.0 else [0.0] * 3)
