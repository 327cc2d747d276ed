"""`Gate` beside what `Run` shows of it: a backward that comes too late, and micro-batches that nobody judges."""

import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, Run, UsageError
from trimtab.run import RunCore
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import gradient_norms
from trimtab.torch.losses import reduce_to_rows
from trimtab.values import RunHeader

DECIDERS = ["host", "device"]


def make_run(model, *, decide, guarded=True, accumulation=2):
    return Run(
        None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        accumulation=accumulation,
        guard=GuardConfig(rule="robust", decide=decide) if guarded else None,
        record=False,
    )


def micro_batch(run, model, factor=1.0):
    losses = (model(torch.ones(2, 3)) * factor).square().squeeze(-1)
    return run.micro_batch(losses, per="sample", rows=[0, 1])


def make_gate(model, decide):
    guard = GuardConfig(rule="robust", decide=decide)
    return Gate(RunCore(RunHeader(run_id=None, backend="torch"), guard=guard, record=False), model=model)


def take(gate, model, factor=1.0):
    losses = (model(torch.ones(2, 3)) * factor).square().squeeze(-1)
    reduced = reduce_to_rows(losses, rows=[0, 1], per="sample")
    decision = gate.take(reduced)
    return gate.watched(decision.kept(reduced.loss_sum))


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("factors", [(1.0, math.nan), (math.nan, 1.0), (1.0, 1.0)])
def test_one_backward_for_two_micro_batches_is_refused(decide, factors):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)
    both = sum(micro_batch(run, model, factor) for factor in factors)
    with pytest.raises(UsageError, match="after the next one was judged"):
        both.backward()


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_backward_that_comes_after_its_step_is_refused(decide):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)
    late = micro_batch(run, model, math.nan)
    micro_batch(run, model).backward()
    run.step()
    with pytest.raises(UsageError, match="or after its step"):
        late.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_micro_batch_may_have_no_backward_or_two(decide):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide, accumulation=4)
    with torch.no_grad():
        micro_batch(run, model)
    micro_batch(run, model)  # given up by the loop
    loss = micro_batch(run, model)
    loss.backward(retain_graph=True)
    loss.backward()
    micro_batch(run, model).backward()
    assert run.step().stepped


def test_without_a_guard_one_backward_may_be_for_two():
    model = nn.Linear(3, 1)
    run = make_run(model, decide="auto", guarded=False)
    (micro_batch(run, model) + micro_batch(run, model)).backward()
    assert run.step().stepped


@pytest.mark.parametrize("decide", DECIDERS)
def test_what_nobody_judges_counts_also_after_a_skip(decide):
    # given a skip that left its zeros
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    gate = make_gate(model, decide)
    take(gate, model, math.nan).backward()
    # when
    gate.open()
    model(torch.full((2, 3), 4.0)).sum().backward()
    gate.take_unjudged(torch.tensor([5]), packed=False)
    expected, seen = model[1].bias.grad.clone(), model[0].running_mean.clone()
    take(gate, model, math.nan).backward()
    is_empty = gate.close_window()
    # then its gradient and its statistics stay, those of the skips do not
    assert (model[1].bias.grad.item(), expected.item()) == (2.0, 2.0)
    assert torch.equal(model[0].running_mean, seen)
    assert seen.tolist() == pytest.approx([0.4] * 3)
    # and there is something to step by
    assert not is_empty
    assert not gate.judge_step(None).dropped


@pytest.mark.parametrize("scaler_waits", [False, True])
def test_the_zeros_of_an_empty_window_stay_for_a_scaler_that_has_not_looked(scaler_waits):
    model = nn.Linear(3, 1)
    gate = make_gate(model, "host")
    take(gate, model, math.nan).backward()
    assert gate.close_window(scaler_waits=scaler_waits)
    assert [parameter.grad is None for parameter in model.parameters()] == [not scaler_waits] * 2


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_norm_that_is_not_finite_is_told_also_where_the_host_of_the_loop_measures_none(decide, caplog):
    model = nn.Linear(3, 1)
    gate = make_gate(model, decide)
    take(gate, model).backward()
    model.bias.grad[0] = math.inf
    gate.close_window()
    verdict = gate.judge_step(gradient_norms(gate.parameters()))
    outcome = gate.end(verdict, loss=torch.tensor(1.0), num_tokens=2, norm=None, clip_at=None, lr=0.1)
    gate.drain()
    assert (outcome.reason, outcome.grad_norm) == ("nonfinite_norm", None)
    assert "Step 1: the gradient norm is inf" in caplog.text
    assert "first parameter with such a gradient: bias" in caplog.text
