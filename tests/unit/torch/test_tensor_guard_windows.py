"""`loss = guard(loss)`: what belongs to an optimizer's window, and which parameters a skip keeps clean."""

import copy
import gc
import math
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, GuardLockupError, LossGuard, PerTokenLossGuard, TrimtabWarning, UsageError

BATCH = torch.ones(2, 3)
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_of(model, factor=1.0):
    return (model(BATCH) ** 2).mean() * factor


def train(guard, model, optimizer, *, num_windows=4):
    for _ in range(num_windows):
        guard(loss_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()


def numbers(model, optimizer):
    """Parameters, and the moments and step counts that are not zero: before its first step an optimizer has none."""
    moments = [torch.as_tensor(value) for state in optimizer.state.values() for value in state.values()]
    return copy.deepcopy([*model.state_dict().values(), *(moment for moment in moments if moment.any())])


def skip_whole(guard, model, optimizer, scale=lambda loss: loss, step=lambda optimizer: optimizer.step()):
    """One window in which all is skipped must leave nothing behind."""
    before = numbers(model, optimizer)
    scale(guard(loss_of(model, math.nan))).backward()
    step(optimizer)
    after = numbers(model, optimizer)
    assert guard.state_dict()["num_skipped"] == 1
    assert len(before) == len(after)
    assert all(map(torch.equal, before, after))


# A window that is skipped whole takes no step, whatever its optimizer has not been told of before.


@pytest.mark.parametrize("is_old_gone", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_window_of_an_optimizer_that_comes_later_is_dropped_too(model, name, is_old_gone):
    guard, old = LossGuard(multiplier=3.0, model=model), torch.optim.SGD(model.parameters(), lr=0.001)
    train(guard, model, old)
    if is_old_gone:
        del old
        gc.collect()

    skip_whole(guard, model, OPTIMIZERS[name](model.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_window_after_one_that_the_user_threw_away_is_dropped_too(model, name):
    guard, optimizer = LossGuard(multiplier=3.0, model=model), OPTIMIZERS[name](model.parameters())
    train(guard, model, optimizer)
    guard(loss_of(model)).backward()
    optimizer.zero_grad()

    skip_whole(guard, model, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_window_after_one_that_a_gradient_scaler_threw_away_is_dropped_too(model, name):
    guard, optimizer = LossGuard(multiplier=3.0, model=model), OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for gain in (0.0, 0.0, 0.0, 0.0, 1e38):  # times the scale the last is beyond float32
        prediction = model(BATCH)
        loss = (prediction**2).mean() + gain * (prediction - prediction.detach()).mean()
        scaler.scale(guard(loss)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 4.0

    skip_whole(guard, model, optimizer, scale=scaler.scale, step=scaler.step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_one_guard_skips_whole_leaves_the_step_of_another_on_the_same_model(model, name):
    def train(*, guarded):
        net = copy.deepcopy(model)
        optimizer = OPTIMIZERS[name](net.parameters())
        one, other = (LossGuard(multiplier=3.0, model=net) if guarded else None for _ in range(2))
        for window in range(7):
            for guard, is_bad in ((one, window == 4), (other, window == 5)):
                if is_bad and not guarded:
                    continue
                loss = loss_of(net, math.nan if is_bad else 1.0)
                (guard(loss) if guarded else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        return numbers(net, optimizer)

    assert all(map(torch.equal, train(guarded=True), train(guarded=False)))


# A window that is not skipped whole steps, though its gradients are zero.


@pytest.mark.parametrize("zeros", [False, True], ids=["none", "zeros"])
def test_a_kept_loss_without_a_slope_and_one_without_tokens_step_as_without_a_guard(model, zeros):
    guard, optimizer = PerTokenLossGuard(multiplier=3.0, model=model), OPTIMIZERS["SGD momentum"](model.parameters())
    for _ in range(2):
        guard(loss_of(model), 1).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not zeros)
    before = numbers(model, optimizer)

    guard(loss_of(model, 0.0), 1).backward()
    guard(loss_of(model, 0.0), 0).backward()
    optimizer.step()

    assert not any(map(torch.equal, numbers(model, optimizer), before))  # momentum and weight decay


def test_a_dead_layer_with_an_optimizer_of_its_own_steps_where_the_others_do(model):
    # given
    dead = nn.Linear(3, 1)
    nn.init.constant_(dead.bias, -100.0)
    both = nn.ModuleList([model, dead])
    guard = LossGuard(multiplier=3.0, model=both)
    optimizers = [OPTIMIZERS["SGD momentum"](part.parameters()) for part in both]
    for _ in range(4):
        guard(loss_of(model) + torch.relu(dead(BATCH)).sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    before = dead.weight.clone()

    # when: something kept, something skipped
    for factor in (1.0, math.nan):
        guard(loss_of(model, factor) + torch.relu(dead(BATCH)).sum()).backward()
    optimizers[1].step()

    # then: weight decay has acted
    assert not torch.equal(dead.weight, before)


def test_a_new_optimizer_is_not_held_to_what_was_skipped_before_it(model):
    guard = LossGuard(multiplier=3.0, model=model)
    train(guard, model, torch.optim.SGD(model.parameters(), lr=0.001))
    old = torch.optim.SGD(model.parameters(), lr=0.001)
    skip_whole(guard, model, old)
    old.zero_grad()
    before = model.weight.clone()

    optimizer = OPTIMIZERS["SGD momentum"](model.parameters())
    guard(loss_of(model, 0.0)).backward()
    optimizer.step()

    assert not torch.equal(model.weight, before)


def test_an_optimizer_that_steps_within_a_backward_leaves_the_rest_of_it_masked():
    # given: a head that is stepped as soon as it has its gradient, before the body has
    torch.manual_seed(0)
    body, head = nn.Linear(3, 2), nn.Linear(2, 1)
    both = nn.Sequential(body, head)
    guard = LossGuard(multiplier=3.0, model=both)
    of_head = torch.optim.SGD([head.weight], lr=0.01)

    def step(_):
        of_head.step()
        of_head.zero_grad()

    head.weight.register_post_accumulate_grad_hook(step)
    guard(loss_of(both)).backward()
    kept = body.weight.grad.clone()

    # when
    guard(loss_of(both, math.nan)).backward()

    # then
    assert torch.equal(body.weight.grad, kept)
    assert head.weight.isfinite().all()


# Parameters beside the model.


class Scaled(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, prediction):
        return (self.temperature * prediction**2).mean()


def trained_beside(model, criterion, *, guard, faults):
    """Two micro-batches a window, of which the second has a fault in the windows `faults`; without a guard left out."""
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for window in range(5):
        for micro in range(2):
            is_bad = window in faults and micro == 1
            if is_bad and guard is None:
                continue
            loss = criterion(model(BATCH + window + micro)) * (math.nan if is_bad else 1.0)
            (loss if guard is None else guard(loss)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("faults", [{0}, {3}, {0, 3}])
def test_a_skip_keeps_a_criterions_parameters_clean_from_the_first_micro_batch_on(model, faults, caplog):
    expected = trained_beside(copy.deepcopy(model), Scaled(), guard=None, faults=faults)

    guard = LossGuard(multiplier=100.0, model=model)
    found = trained_beside(model, Scaled(), guard=guard, faults=faults)

    assert all(map(torch.equal, found, expected))
    assert guard.num_skipped == len(faults)
    assert not any("does not hold" in line for line in caplog.messages)


def test_what_is_met_at_the_first_step_only_is_said_once_and_covered_from_then_on(model, caplog):
    # given: a temperature that is no parameter, so that only the optimizer knows what it is
    temperature = torch.tensor(2.0, requires_grad=True)
    guard = LossGuard(multiplier=3.0, model=model)
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.01)
    for _ in range(4):
        guard(temperature * loss_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()

    # when
    guard(temperature * loss_of(model, math.nan)).backward()

    # then
    assert temperature.grad.item() == 0.0
    said = [line for line in caplog.messages if "1 parameters that the guard's model does not hold" in line]
    assert len(said) == 1


def steps_of(criterion, optimizer, *, guard, model, factors):
    """What the criterion's parameter is after each window, one micro-batch each; a factor None trains without it."""
    found = []
    of_model = torch.optim.SGD(model.parameters(), lr=0.01)
    for factor in factors:
        prediction = model(BATCH)
        loss = (prediction**2).mean() if factor is None else criterion(prediction) * factor
        guard(loss).backward()
        for each in (of_model, optimizer):
            each.step()
            each.zero_grad()
        found.append(criterion.temperature.item())
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_criterion_with_an_optimizer_of_its_own_does_not_step_where_all_was_skipped(model, name):
    criterion, guard = Scaled(), LossGuard(multiplier=100.0, model=model)
    optimizer = OPTIMIZERS[name](criterion.parameters())

    found = steps_of(criterion, optimizer, guard=guard, model=model, factors=[1.0, 1.0, math.nan, 1.0])

    assert found[1] == found[2]
    assert len(set(found)) == 3
    assert math.isfinite(found[-1])


def test_a_criterion_is_met_after_an_evaluation_and_when_it_joins_late(model):
    criterion, guard = Scaled(), LossGuard(multiplier=100.0, model=model)
    optimizer = OPTIMIZERS["SGD momentum"](criterion.parameters())
    with torch.no_grad():
        guard(loss_of(model))

    found = steps_of(criterion, optimizer, guard=guard, model=model, factors=[None, None, 1.0, math.nan, 1.0])

    assert math.isfinite(found[-1])
    assert found[2] == found[3]


def test_an_optimizer_of_something_else_is_let_be(model):
    """A discriminator: the guarded loss goes through it, and it learns from losses of its own."""
    discriminator, guard = nn.Linear(1, 1), LossGuard(multiplier=100.0, model=model)
    own, of_model = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (discriminator, model))
    for factor in (1.0, 1.0, math.nan):
        guard((discriminator(model(BATCH)) ** 2).mean() * factor).backward()
        of_model.step()
        own.zero_grad()
        of_model.zero_grad()
        before = discriminator.weight.clone()
        (discriminator(torch.ones(2, 1)) ** 2).mean().backward()
        own.step()
        assert not torch.equal(discriminator.weight, before)


DEEP = """
import torch, trimtab
from torch import nn
model = nn.Linear(1, 1)
guard = trimtab.LossGuard(multiplier=2.0, model=model)
y = model(torch.ones(1))
for _ in range(60_000):
    y = y * 1.0
loss = guard(y.sum())
loss.backward()
del loss, y
print(guard.num_judged)
"""


def test_a_graph_of_any_depth_is_looked_behind_without_harm():
    """torch frees by recursion what Python has seen of a graph: too much of it would end the process."""
    ended = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")


# What it is made of.


def test_a_lock_up_is_heard_of_where_no_optimizer_steps(model):
    guard = LossGuard(multiplier=3.0, max_consecutive_skips=2, on_lockup="raise", model=model)
    for _ in range(4):
        guard(loss_of(model))

    # A copy is sent for before the device overwrites anything, of which it holds 1,024.
    with pytest.raises(GuardLockupError, match="2 losses in a row were skipped"):
        call_repeatedly(guard, loss_of(model, 100.0), num_calls=1_000)


def call_repeatedly(guard, loss, *, num_calls):
    for _ in range(num_calls):
        guard(loss)


def test_no_forward_hook_outlives_the_guard_of_a_model_with_running_statistics(model):
    normed = nn.Sequential(model, nn.BatchNorm1d(1))
    guard, optimizer = LossGuard(multiplier=3.0, model=normed), torch.optim.SGD(normed.parameters(), lr=0.1)
    train(guard, normed, optimizer, num_windows=1)
    assert normed._forward_pre_hooks
    assert normed._forward_hooks

    del guard

    assert not any(module._forward_pre_hooks or module._forward_hooks for module in normed.modules())


def test_an_optimizer_that_stepped_beside_a_guard_is_let_go(model):
    guard, optimizer = LossGuard(multiplier=3.0, model=model), OPTIMIZERS["AdamW"](model.parameters())
    train(guard, model, optimizer)
    gone = weakref.ref(optimizer)

    del optimizer
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_guard_that_acts_on_a_model_is_not_copied_but_one_that_only_decides_is(model, copied):
    with pytest.raises(UsageError, match=r"neither copied nor pickled.*state_dict"):
        copied(LossGuard(multiplier=2.0, model=model))
    copied(LossGuard(multiplier=2.0))


@pytest.mark.parametrize("construct", [LossGuard, PerTokenLossGuard])
def test_one_configuration_serves_a_run_and_a_guard(model, construct):
    config = GuardConfig(rule="robust", min_history=3)

    guard = construct(config, model=model)

    assert guard.config is config


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"decide": "host"}, 'decide="host" has no effect'), ({"skipped_tokens": "removed"}, '"removed" has no effect')],
)
def test_a_setting_that_changes_nothing_in_a_guard_with_a_model_is_said(model, settings, what):
    config = GuardConfig(multiplier=2.0, **settings)

    with pytest.warns(TrimtabWarning, match=what) as caught:
        LossGuard(config, model=model)

    assert [warning.filename for warning in caught] == [__file__]


def test_a_model_that_holds_no_values_yet_is_refused():
    with pytest.raises(UsageError, match=r"parameter weight is on the meta device.*to_empty"):
        LossGuard(multiplier=2.0, model=nn.Linear(3, 1, device="meta"))
    with pytest.raises(UsageError, match=r"lazy module.*run one forward first"):
        LossGuard(multiplier=2.0, model=nn.LazyLinear(3))
