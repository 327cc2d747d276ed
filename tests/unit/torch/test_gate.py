"""`Gate` beside what `Run` shows of it: whose backward is masked, and micro-batches that nobody judges."""

import gc
import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, GuardLockupError, Run, UsageError
from trimtab.run import RunCore
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import gradient_norms
from trimtab.torch.losses import reduce_to_rows
from trimtab.values import RunHeader

DECIDERS = ["host", "device"]


def make_run(model, *, decide, guarded=True, accumulation=2, optimizer=None):
    return Run(
        None,
        model=model,
        optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.0),
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
    return gate.bind(reduced.loss_sum, decision)


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("factors", [(1.0, math.nan), (math.nan, 1.0)])
def test_one_backward_for_a_kept_and_a_skipped_micro_batch_is_refused(decide, factors):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)
    both = sum(micro_batch(run, model, factor) for factor in factors)
    with pytest.raises(UsageError, match="losses of two micro-batches"):
        both.backward()
    # and what comes next is none of that
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    assert model.bias.grad.item() == 2.0


@pytest.mark.parametrize("decide", DECIDERS)
def test_backwards_may_come_late_and_in_another_order(decide):
    # given
    model = nn.Linear(3, 1)
    model(torch.ones(2, 3)).square().mean().div(2).backward()
    expected = model.bias.grad.clone()
    model.zero_grad()
    run = make_run(model, decide=decide)
    # when
    losses = [micro_batch(run, model, factor) for factor in (math.nan, 1.0)]
    for loss in reversed(losses):
        loss.backward()
    # then
    assert torch.equal(model.bias.grad, expected)


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_skipped_backward_that_comes_after_its_step_leaves_zeros(decide):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)
    late = micro_batch(run, model, math.nan)
    micro_batch(run, model).backward()
    run.step()
    late.backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_backward_of_ones_own_after_a_skip_counts(decide):
    # given a loop whose penalty has a backward of its own, once a window, and reaches what only the skip had reached
    model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])

    def penalty():
        return 0.1 * sum(parameter.square().sum() for parameter in model.parameters())

    (model[0](torch.ones(2, 3)).square().mean() / 2).backward()
    penalty().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    run = make_run(model, decide=decide)
    # when
    micro_batch(run, model[0]).backward()
    micro_batch(run, model[1], math.nan).backward()
    penalty().backward()
    # then
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
    run._gate.close_window()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("decide", DECIDERS)
def test_gradients_that_a_loss_is_made_of_are_not_masked_by_the_skip_before_it(decide):
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)

    def adapted():
        inner = model(torch.ones(2, 3)).square().mean()
        slopes = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
        weight, bias = (p - 0.1 * slope for p, slope in zip(model.parameters(), slopes, strict=True))
        return ((torch.ones(2, 3) @ weight.T + bias).squeeze(1) - 1.0).square()

    (adapted().mean() / 2).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    micro_batch(run, model, math.nan).backward()
    run.micro_batch(adapted(), per="sample", rows=[0, 1]).backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("decide", DECIDERS)
def test_a_backward_may_have_a_graph_of_its_own(decide):
    # given second derivatives of the window's gradients, as second-order optimizers take them
    model = nn.Linear(3, 1)
    run = make_run(model, decide=decide)
    # when
    for _ in range(2):
        micro_batch(run, model).backward(create_graph=True)
    (found,) = torch.autograd.grad(model.weight.grad.sum(), model.bias, retain_graph=True)
    # then d2/dw db of ((w . 1 + b) ** 2) / 2 is 1 for each of the 3 entries of w, in each micro-batch
    assert found.item() == pytest.approx(6.0)
    model.zero_grad()


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_run_that_is_thrown_away_lets_go_of_model_and_optimizer(decide):
    # given an interrupted loop whose run nobody closed
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_run(model, optimizer=optimizer, decide=decide, accumulation=1)
    micro_batch(run, model, math.nan).backward()
    run.step()
    micro_batch(run, model, math.nan).backward()
    # when
    del run
    gc.collect()
    # then
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    hooks = [
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *(model._forward_pre_hooks, model._forward_hooks),
    ]
    assert not any(hooks)


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


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_micro_batch_in_which_a_lock_up_raises_is_not_in_the_running_statistics(decide):
    model = nn.BatchNorm1d(3)
    guard = GuardConfig(multiplier=2.0, decide=decide, on_lockup="raise", max_consecutive_skips=2)
    gate = Gate(RunCore(RunHeader(run_id=None, backend="torch"), guard=guard, record=False), model=model)

    def micro_batch(factor):
        losses = model(torch.arange(6.0).view(2, 3) * factor).square().mean(1) * factor
        gate.take(reduce_to_rows(losses, rows=[0, 1], per="sample"))

    for _ in range(4):
        micro_batch(1.0)
    gate.close_window()
    seen = model.running_mean.clone()
    with pytest.raises(GuardLockupError):  # noqa: PT012 - whoever decides: in the third skip, or as the host hears of it
        for _ in range(5):
            micro_batch(9.0)

    assert torch.equal(model.running_mean, seen)
