"""Running statistics that a checkpointed layer moves once more in backward: without a skip right after the step."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimtab import GuardConfig, LossGuard, Run


class Net(nn.Module):
    """A normalisation that is run forward once more in backward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(checkpoint(self.norm, x, use_reentrant=False)).square().squeeze(1)


def batches():
    """Three ordinary ones, then one far away."""
    generator = torch.Generator().manual_seed(0)
    ordinary = [torch.randn(4, 2, generator=generator) for _ in range(3)]
    return [*ordinary, ordinary[0] + 50]


def statistics_without_the_last():
    torch.manual_seed(0)
    net = Net()
    for x in batches()[:-1]:
        net(x).sum().backward()
    return copy.deepcopy(net.norm.state_dict())


def assert_statistics(net):
    # the weights take no part in what is normalised, so that steps do not change them
    expected = statistics_without_the_last()
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(net.norm.state_dict()[name], expected[name]), name


@pytest.mark.parametrize("decide", ["host", "device"])
def test_after_the_step_of_a_run_the_last_micro_batch_was_not_seen_if_it_was_skipped(decide):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    run = Run(None, model=net, optimizer=optimizer, guard=GuardConfig(multiplier=2.0, decide=decide), record=False)

    for number, x in enumerate(batches()):
        losses = net(x) * 0 + (500.0 if number == 3 else 1.0)
        run.micro_batch(losses, per="sample", rows=[0, 1, 2, 3]).backward()
        outcome = run.step()

    assert outcome.reason == "all_skipped"
    assert_statistics(net)
    run.close()


def test_after_the_step_beside_a_guard_the_last_micro_batch_was_not_seen_if_it_was_skipped():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    guard = LossGuard(multiplier=2.0, model=net)

    for number, x in enumerate(batches()):
        guard(net(x).mean() * 0 + (500.0 if number == 3 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert_statistics(net)
    assert (guard.state_dict()["num_judged"], guard.num_skipped) == (4, 1)
