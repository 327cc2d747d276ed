"""Running statistics that a checkpointed layer moves once more in backward: without a skip right after the step."""

import copy
import math

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


# Checkpointing around the whole model, which so runs as a whole in backward.


class Whole(nn.Module):
    """Made of parts that keep statistics, the second of what the first has normalised."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3), nn.Tanh(), nn.BatchNorm1d(3, momentum=None))

    def forward(self, x):
        return self.body(x).square().mean()


def trained_whole(factors, *, use_reentrant, guarded, micros_a_step=1):
    """One micro-batch a factor, those of NaN left out where no guard is there to do it."""
    torch.manual_seed(0)
    model = Whole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = LossGuard(multiplier=100.0, model=model) if guarded else None
    for number, factor in enumerate(factors, start=1):
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(number)).requires_grad_()
        if guard is not None:
            guard(checkpoint(model, x, use_reentrant=use_reentrant) * factor).backward()
        elif not math.isnan(factor):
            (checkpoint(model, x, use_reentrant=use_reentrant) * factor).backward()
        if number % micros_a_step == 0 and (guarded or not math.isnan(factor)):
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize(
    ("factors", "micros_a_step"),
    [
        ([1.0, 1.0, math.nan, 1.0, 1.0], 1),
        ([math.nan, 1.0, 1.0, 1.0, math.nan], 1),
        ([1.0, math.nan, 1.0, math.nan, 1.0, 1.0], 3),
    ],
    ids=["a step each", "first and last", "windows of three"],
)
def test_a_model_that_is_checkpointed_as_a_whole_is_as_if_it_had_not_seen_what_was_skipped(
    use_reentrant, factors, micros_a_step
):
    settings = {"use_reentrant": use_reentrant, "micros_a_step": micros_a_step}

    found = trained_whole(factors, guarded=True, **settings)

    expected = trained_whole(factors, guarded=False, **settings)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # and torch itself counts each batch that it kept twice
    num_kept = sum(not math.isnan(factor) for factor in factors)
    assert found["body.0.num_batches_tracked"].item() == 2 * num_kept


def test_a_buffer_that_somebody_changes_before_backward_is_not_taken_for_one_that_the_forward_changes(caplog):
    model = Whole()
    model.register_buffer("progress", torch.zeros(()))
    guard = LossGuard(multiplier=100.0, model=model)

    for number in range(3):
        loss = guard(checkpoint(model, torch.ones(4, 2, requires_grad=True), use_reentrant=True))
        model.progress.fill_(number)
        loss.backward()

    assert not any("Buffers that the forward changes" in line for line in caplog.messages)
