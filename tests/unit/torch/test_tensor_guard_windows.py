"""`loss = guard(loss)`: what belongs to an optimizer's window, and which parameters a skip keeps clean."""

import copy
import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, LossGuard, PerTokenLossGuard, TrimtabWarning, UsageError

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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_window_of_an_optimizer_that_comes_later_is_dropped_too(model, name):
    guard = LossGuard(multiplier=3.0, model=model)
    train(guard, model, torch.optim.SGD(model.parameters(), lr=0.001))

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


# What it is made of.


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
