"""The step of a `Run`: what it is judged by, and what is left beside it when it is dropped."""

import logging
import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, Run
from trimtab.errors import UsageError
from trimtab.torch.transfer import InFlight

DECIDERS = ["host", "device"]
KINDS = {"plain": {}, "fused": {"fused": True}}


class Halves(nn.Module):
    """Two halves that add up; an optimizer may hold one of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x):
        return self.one(x) + self.other(x)


def losses_of(model, fault=None):
    out = model(torch.ones(2, 3)).squeeze(1)
    losses = out**2
    if fault == "infinite derivative":
        losses = losses + 0 * torch.sqrt((out - out.detach()).abs())
    if fault == "infinite norm":  # of finite gradients
        losses = losses + 1e25 * (out - out.detach())
    if fault == "nan":
        losses = losses * math.nan
    return losses


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def is_finite(model):
    return all(parameter.isfinite().all() for parameter in model.parameters())


# What is beside the optimizer.


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_parameter_outside_the_optimizer_does_not_hold_the_run_for_ever(decide, kind):
    model = Halves()
    optimizer = torch.optim.AdamW(model.one.parameters(), lr=0.01, **kind)
    guard = GuardConfig(rule="robust", decide=decide)
    with Run(None, model=model, optimizer=optimizer, max_grad_norm=1.0, guard=guard, record=False) as run:
        reasons = []
        for fault in (None, "infinite derivative", None, None):
            run.micro_batch(losses_of(model, fault), rows=[0, 1], per="sample").backward()
            reasons.append(run.step().reason)

    assert reasons == ["stepped", "nonfinite_norm", "stepped", "stepped"]
    assert is_finite(model)


def test_what_is_measured_and_clipped_is_what_the_optimizer_steps():
    # given a gradient of the other half that nobody ever clears
    model = Halves()
    optimizer = torch.optim.SGD(model.one.parameters(), lr=0.1)
    oracle = Halves()
    with Run(None, model=model, optimizer=optimizer, max_grad_norm=0.5, record=False) as run:
        for _ in range(3):
            run.micro_batch(losses_of(model), rows=[0, 1], per="sample").backward()
            norm = run.step().grad_norm

            # then
            losses_of(oracle).mean().backward()
            expected = nn.utils.clip_grad_norm_(oracle.one.parameters(), 0.5)
            for parameter in oracle.one.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
            assert norm == pytest.approx(float(expected), rel=1e-6)
    torch.testing.assert_close(weights(model), weights(oracle))


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_dropped_step_leaves_no_nan_to_the_other_run_of_one_model(decide, kind):
    # given two runs that take turns, each with one half
    model = Halves()
    guard = GuardConfig(rule="robust", decide=decide)
    runs = [
        Run(None, model=model, optimizer=torch.optim.AdamW(half.parameters(), **kind), guard=guard, record=False)
        for half in (model.one, model.other)
    ]
    reasons = []

    # when
    for fault in (None, "infinite derivative", None):
        for run, what in zip(runs, (fault, None), strict=True):
            run.micro_batch(losses_of(model, what), rows=[0, 1], per="sample").backward()
            reasons.append(run.step().reason)

    # then the fault costs the step of its own run
    assert reasons == ["stepped", "stepped", "nonfinite_norm", "stepped", "stepped", "stepped"]
    assert is_finite(model)
    for run in runs:
        run.close()


# A gradient scaler.


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("has_scaler", [False, True], ids=["alone", "scaler"])
def test_finite_gradients_whose_norm_is_infinite_are_no_step(decide, kind, has_scaler, caplog):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=4) if has_scaler else None
    guard = GuardConfig(rule="robust", decide=decide)
    told = []
    with (
        caplog.at_level(logging.WARNING, logger="trimtab"),
        Run(None, model=model, optimizer=optimizer, max_grad_norm=1.0, guard=guard, record=False) as run,
    ):
        for fault in (None, None, "infinite norm", None):
            before = weights(model)
            loss = run.micro_batch(losses_of(model, fault), rows=[0, 1], per="sample")
            (scaler.scale(loss) if scaler else loss).backward()
            outcome = run.step(scaler)
            is_still = all(map(torch.equal, before, weights(model)))
            told.append((outcome.reason, is_still, scaler.get_scale() if scaler else 2.0))

    assert told == [
        ("stepped", False, 2.0),
        ("stepped", False, 2.0),
        ("nonfinite_norm", True, 2.0),
        ("stepped", False, 4.0 if has_scaler else 2.0),  # the scaler grows as it would have done
    ]
    assert caplog.text.count("Step 3: the gradient norm is inf") == 1


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_overflow_of_the_scaler_is_not_told_as_a_fault(decide, kind, tmp_path, caplog):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    guard = GuardConfig(rule="robust", decide=decide)
    with (
        caplog.at_level(logging.WARNING, logger="trimtab"),
        Run(tmp_path, model=model, optimizer=optimizer, max_grad_norm=1.0, guard=guard) as run,
    ):
        scaler.scale(run.micro_batch(losses_of(model), rows=[0, 1], per="sample")).backward()
        model.weight.grad.fill_(math.inf)
        outcome = run.step(scaler)

    assert (outcome.reason, scaler.get_scale()) == ("scaler_overflow", 1.0)
    assert "gradient norm" not in caplog.text


# A history that is put back.


def test_a_state_put_back_into_the_same_run_reaches_the_device_that_decides():
    told = {}
    for decide in DECIDERS:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        run = Run(
            None, model=model, optimizer=optimizer, guard=GuardConfig(multiplier=3.0, decide=decide), record=False
        )

        def train(factor, run=run, model=model):
            run.micro_batch(factor * losses_of(model), rows=[0, 1], per="sample").backward()
            return run.step().reason

        for _ in range(5):
            train(1.0)
        state = run.state_dict()
        for _ in range(5):
            train(1.0)
        run.load_state_dict(state)
        told[decide] = [train(100.0), train(1.0), run.state_dict()["guard"]]
        run.close()

    assert told["device"] == told["host"]
    assert told["host"][:2] == ["all_skipped", "stepped"]


def locking_up():
    """A run on the device that has seen five losses, and may skip one more in a row; and how it trains on."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = GuardConfig(multiplier=3.0, decide="device", on_lockup="raise", max_consecutive_skips=1)
    run = Run(None, model=model, optimizer=optimizer, accumulation=2, guard=guard, record=False)

    def train(factor):
        run.micro_batch(factor * losses_of(model), rows=[0, 1], per="sample").backward()

    for _ in range(5):
        train(1.0)
        run.step()
    return run, train


class Slow:
    """Stands in for the event of a copy that comes only when it is waited for: here nothing is ever late by itself."""

    def __init__(self):
        self.has_come = False

    def query(self):
        return self.has_come

    def synchronize(self):
        self.has_come = True


def in_flight(tensor):
    copy = object.__new__(InFlight)
    copy._host, copy._event = tensor.clone(), Slow()
    copy.shape, copy.nbytes = tensor.shape, tensor.nbytes
    return copy


def test_a_lockup_heard_of_while_a_state_is_put_back_belongs_to_what_is_left(monkeypatch, caplog):
    # given skips that the host hears of only when it waits, two of them too many
    run, train = locking_up()
    state = run.state_dict()
    monkeypatch.setattr("trimtab.torch.judge.to_host", in_flight)
    for _ in range(3):
        train(100.0)
        assert run.step().reason == "all_skipped"

    # when
    with caplog.at_level(logging.INFO, logger="trimtab"):
        run.load_state_dict(state)

    # then it is said, and the history is that of the state
    assert caplog.text.count("in a row") == 2
    train(1.0)
    assert run.step().reason == "stepped"
    assert run.state_dict()["guard"]["num_judged"] == 6
    run.close()


def interrupted(run, train, factors):
    with run:
        for factor in factors:
            train(factor)
        raise KeyboardInterrupt


def test_a_skip_of_the_last_micro_batch_is_said_when_the_run_ends_by_an_error(caplog):
    run, train = locking_up()
    with caplog.at_level(logging.INFO, logger="trimtab"), pytest.raises(KeyboardInterrupt):
        interrupted(run, train, [100.0])

    assert "Guard skipped micro-batch 0 of step 6: spike" in caplog.text


def test_a_lockup_heard_of_at_the_end_does_not_hide_the_error_that_ended_the_run(caplog):
    run, train = locking_up()
    with caplog.at_level(logging.INFO, logger="trimtab"), pytest.raises(KeyboardInterrupt):
        interrupted(run, train, [100.0, 100.0])

    assert caplog.text.count("Guard skipped") == 1
    assert caplog.text.count("in a row") == 1


# Steps that can move nothing.


@pytest.mark.parametrize("guard", [None, GuardConfig(rule="robust")], ids=["no guard", "guard"])
def test_an_optimizer_of_another_model_is_refused_before_a_step_that_would_move_nothing(guard):
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    run = Run(None, model=model, optimizer=torch.optim.AdamW(other.parameters()), guard=guard, record=False)
    run.micro_batch(losses_of(model), rows=[0, 1], per="sample").backward()

    with pytest.raises(UsageError, match="none of the optimizer's parameters is one of the model's"):
        run.step()
    run.close()


def test_an_optimizer_of_what_the_model_is_fed_with_is_no_mistake():
    # given a model that stays, and an input that is learned
    model, prompt = nn.Linear(3, 1), nn.Parameter(torch.ones(2, 3))
    run = Run(None, model=model, optimizer=torch.optim.SGD([prompt], lr=0.1), record=False)
    run.micro_batch(model(prompt).squeeze(1) ** 2, rows=[0, 1], per="sample").backward()

    assert run.step().reason == "stepped"
    assert not torch.equal(prompt, torch.ones(2, 3))
    run.close()


@pytest.mark.parametrize("guard", [None, *(GuardConfig(rule="robust", decide=decide) for decide in DECIDERS)])
def test_a_forgotten_backward_is_said_once(guard, caplog):
    model = nn.Linear(3, 1)
    run = Run(None, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), guard=guard, record=False)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        for _ in range(2):
            run.micro_batch(losses_of(model), rows=[0, 1], per="sample")
            assert run.step().reason == "stepped"
    run.close()

    assert caplog.text.count("was loss.backward() called") == 1
    assert "Step 1:" in caplog.text


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_skip_without_a_backward_is_no_forgotten_one(decide, caplog):
    model = nn.Linear(3, 1)
    guard = GuardConfig(rule="robust", decide=decide)
    run = Run(None, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), guard=guard, record=False)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        loss = run.micro_batch(losses_of(model, "nan"), rows=[0, 1], per="sample")
        if decide == "device":
            loss.backward()
        assert run.step().reason == "all_skipped"
    run.close()

    assert "backward() called" not in caplog.text


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_run_says_how_many_micro_batches_its_guard_has_skipped(decide):
    # given
    model = Halves()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    guard = GuardConfig(rule="robust", decide=decide)
    run = Run(None, model=model, optimizer=optimizer, accumulation=3, guard=guard, record=False)
    # when: within a window, where a device has told nothing yet
    for fault in (None, "nan", "nan"):
        run.micro_batch(losses_of(model, fault), per="sample", rows=[0, 1]).backward()
        told = run.num_skipped
    run.step()
    # then
    assert (told, run.num_skipped) == (2, 2)
    assert Run(None, model=model, optimizer=optimizer, record=False).num_skipped == 0
