"""What the host of a run, or of a guard alone, hears of a device's decisions in time, and what it leaves behind."""

import logging

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, GuardLockupError, LossGuard, Run

NORMAL, SPIKE = 1.0, 50.0


def make_run(model, *, decide="device", **settings):
    guard = GuardConfig(multiplier=2.0, decide=decide, **settings.pop("guard", {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    return Run(None, model=model, optimizer=optimizer, guard=guard, record=False, **settings)


def micro_batch(run, model, value):
    return run.micro_batch(model(torch.ones(3, 2)).squeeze(1) * 0.0 + value, per="sample", rows=[0, 1, 2])


RAISING = dict(max_consecutive_skips=1, on_lockup="raise")


def test_a_step_that_raised_a_lockup_may_be_called_again_with_its_scaler():
    # given a window of which only its step can hear that it locks up
    model = nn.Linear(2, 1)
    run = make_run(model, guard=RAISING)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for value in (NORMAL, NORMAL, NORMAL, NORMAL, SPIKE):
        scaler.scale(micro_batch(run, model, value)).backward()
        run.step(scaler)
    scaler.scale(micro_batch(run, model, SPIKE)).backward()
    with pytest.raises(GuardLockupError):
        run.step(scaler)

    # when
    outcome = run.step(scaler)

    assert outcome.reason == "all_skipped"
    run.close()


def test_a_skip_is_said_within_its_window(caplog):
    caplog.set_level(logging.INFO, "trimtab")
    model = nn.Linear(2, 1)
    run = make_run(model, accumulation=8)

    for value in (NORMAL, NORMAL, NORMAL, NORMAL, SPIKE, NORMAL):
        micro_batch(run, model, value).backward()

    assert len([line for line in caplog.messages if "Guard skipped" in line]) == 1
    run.close()


def test_the_error_that_ends_a_run_is_not_hidden_by_a_lockup_that_nobody_heard_of():
    model = nn.Linear(2, 1)

    def train():
        with make_run(model, accumulation=99, guard=RAISING) as run:
            for value in (NORMAL, NORMAL, NORMAL, NORMAL, SPIKE, SPIKE):
                micro_batch(run, model, value).backward()
            raise KeyError("of the loop")

    with pytest.raises(KeyError, match="of the loop"):
        train()


def test_a_lockup_that_nobody_heard_of_is_raised_by_closing():
    model = nn.Linear(2, 1)
    run = make_run(model, accumulation=99, guard=RAISING)
    for value in (NORMAL, NORMAL, NORMAL, NORMAL, SPIKE, SPIKE):
        micro_batch(run, model, value).backward()
    with pytest.raises(GuardLockupError):
        run.close()


def hooks_on(model, optimizer):
    """Everything that is called when the model runs or its optimizer steps."""
    on_parameters = [hook for parameter in model.parameters() for hook in (parameter._backward_hooks or {}).values()]
    on_modules = [
        hook
        for module in model.modules()
        for name, hooks in vars(module).items()
        if name.endswith("_hooks") and hooks
        for hook in hooks.values()
    ]
    on_optimizer = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    return [*on_parameters, *on_modules, *on_optimizer]


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("raises", [False, True], ids=["closed", "ended by an error"])
def test_an_ended_run_leaves_no_hook_on_model_or_optimizer(decide, raises):
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # held: one that is gone has let go of its hooks anyway
    held = Run(None, model=model, optimizer=optimizer, guard=GuardConfig(multiplier=2.0, decide=decide), record=False)

    def train():
        with held as run:
            for value in (NORMAL, SPIKE, float("nan")):
                micro_batch(run, model, value).backward()
                run.step()
            assert hooks_on(model, optimizer)
            if raises:
                raise KeyError("of the loop")

    if raises:
        with pytest.raises(KeyError):
            train()
    else:
        train()

    assert hooks_on(model, optimizer) == []


def test_no_verdict_of_eager_calls_is_lost_however_many_come_without_a_step(caplog):
    caplog.set_level(logging.INFO, "trimtab")
    model = nn.Linear(2, 1)
    guard = LossGuard(multiplier=2.0, model=model)

    with torch.no_grad():
        for _ in range(1300):
            guard(torch.ones(()))

    assert guard.state_dict()["num_judged"] == 1300
    assert caplog.messages == []
