"""Further terms of a micro-batch in one process: which of them count, by the guard of the host and on the device."""

import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, Run

DECIDERS = ["host", "device"]


class Net(nn.Module):
    """Losses of 1 by `w`, and a term by `v`."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.v = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def losses(self):
        return torch.ones(4, dtype=torch.float64) * (1 + self.w - self.w.detach())


def ways(decide, micro_batches, **settings):
    """How far `w` and `v` go in one step of size 1; each micro-batch is (term or None, whether it has tokens)."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    guard = GuardConfig(multiplier=3.0, decide=decide)
    with Run(
        None, model=net, optimizer=optimizer, guard=guard, record=False, accumulation=len(micro_batches), **settings
    ) as run:
        for term, has_tokens in micro_batches:
            mask = torch.full((4,), has_tokens)
            aux = None if term is None else term * net.v
            run.micro_batch(net.losses(), per="token", rows=[0] * 4, mask=mask, aux=aux).backward()
        outcome = run.step()
    return outcome.reason, outcome.num_skipped_micros, -net.w.item(), -net.v.item()


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("term", [math.nan, math.inf, -math.inf])
def test_a_term_that_is_not_finite_skips_its_micro_batch(decide, term):
    assert ways(decide, [(6.0, True), (term, True)]) == ("stepped", 1, 0.5, 3.0)
    assert ways(decide, [(term, True)]) == ("all_skipped", 1, 0.0, 0.0)


@pytest.mark.parametrize("decide", DECIDERS)
def test_without_a_token_a_finite_term_counts(decide):
    assert ways(decide, [(6.0, True), (2.0, False)]) == ("stepped", 0, 0.5, 4.0)


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("term", [math.nan, math.inf])
def test_without_a_token_a_term_that_is_not_finite_is_left_out_and_is_no_skip(decide, term):
    assert ways(decide, [(6.0, True), (term, False)]) == ("stepped", 0, 0.5, 3.0)


@pytest.mark.parametrize("decide", DECIDERS)
def test_without_a_token_or_a_term_nothing_counts_whatever_the_losses_are(decide):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    guard = GuardConfig(multiplier=3.0, decide=decide)
    with Run(None, model=net, optimizer=optimizer, guard=guard, record=False, accumulation=2) as run:
        run.micro_batch(net.losses(), per="token", rows=[0] * 4).backward()
        # a derivative of 0 x NaN
        run.micro_batch(net.losses() * math.nan, per="token", rows=[0] * 4, mask=torch.zeros(4, dtype=bool)).backward()
        outcome = run.step()
    assert (outcome.reason, outcome.num_skipped_micros, net.w.item()) == ("stepped", 0, -0.5)
