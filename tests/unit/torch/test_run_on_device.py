"""`Run` where the device decides: exact as on the host, alike in every verdict and in the log, and nothing waits.

There is no accelerator here: `decide="device"` runs the tensor code on the CPU, where what the host hears of late is
heard at the next micro-batch or step.
"""

import contextlib
import json
import logging
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import trimtab
from trimtab import GuardConfig, Run
from trimtab.errors import GuardLockupError
from trimtab.torch.outcome import StepOutcome
from trimtab.torch.transfer import HostNumber, InFlight

ACCUMULATION = 3


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def make_optimizer(model, kind):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=kind == "fused")


def sample_losses(model, number, fault=None):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    out = model(x)
    if fault == "nan_activation":
        out = out * torch.where(torch.arange(4) == 1, math.nan, 1.0)
    losses = (out - 1).pow(2).sum(1)
    if fault == "spike":
        losses = losses * 100
    if fault == "nan":
        losses = losses * math.nan
    if fault == "spike_inf_derivative":
        losses = losses.detach() * 100 + torch.sqrt(losses * 0.0)
    if fault == "inf_derivative":
        losses = losses.detach() + torch.sqrt(losses * 0.0)
    return losses


def snapshot(model, optimizer):
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [value.detach().clone() for value in (*model.parameters(), *moments) if isinstance(value, torch.Tensor)]


def assert_bit_equal(ours, oracle):
    assert len(ours) == len(oracle)
    for one, other in zip(ours, oracle, strict=True):
        assert torch.equal(one, other)


def plain_loop(num_micros, *, left_out=(), kind="fused"):
    """A loop without Trimtab that never sees what is left out."""
    model = make_model()
    optimizer = make_optimizer(model, kind)
    for start in range(0, num_micros, ACCUMULATION):
        kept = [i for i in range(start, start + ACCUMULATION) if i not in left_out]
        for i in kept:
            (sample_losses(model, i).sum() / 2 / ACCUMULATION).backward()
        if kept:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
    return snapshot(model, optimizer)


def guarded_loop(out, num_micros, *, faults=None, kind="fused", decide="device", state=None, first=0, **settings):
    model, optimizer = settings.pop("parts", (None, None))
    if model is None:
        model = make_model()
        optimizer = make_optimizer(model, kind)
    guard = settings.pop("guard", dict(multiplier=3.0))
    settings = {"accumulation": ACCUMULATION, "max_grad_norm": 1.0, **settings}
    outcomes = []
    with Run(out, model=model, optimizer=optimizer, guard=GuardConfig(**guard, decide=decide), **settings) as run:
        if state is not None:
            run.load_state_dict(state)
        for i in range(first, first + num_micros):
            losses = sample_losses(model, i, (faults or {}).get(i))
            run.micro_batch(losses, per="sample", rows=[2 * i, 2 * i + 1]).backward()
            if run.window_complete:
                outcomes.append(run.step())
        if run.window_open:
            outcomes.append(run.step())
        state = run.state_dict()
    return snapshot(model, optimizer), outcomes, run, state


@pytest.mark.parametrize("kind", ["fused", "foreach", "sgd"])
def test_without_a_fault_a_guarded_run_is_the_plain_loop_bit_for_bit(tmp_path, kind):
    ours, outcomes, _, _ = guarded_loop(tmp_path, 12, kind=kind)

    assert [outcome.reason for outcome in outcomes] == ["stepped"] * 4
    assert_bit_equal(ours, plain_loop(12, kind=kind))


@pytest.mark.parametrize("fault", ["spike", "nan", "nan_activation", "spike_inf_derivative"])
@pytest.mark.parametrize("bad", [{6}, {7}, {8}, {6, 7, 8}], ids=["first", "middle", "last", "all"])
@pytest.mark.parametrize("kind", ["fused", "foreach", "sgd"])
def test_a_skip_is_exact(tmp_path, fault, bad, kind):
    ours, outcomes, _, _ = guarded_loop(tmp_path, 12, faults=dict.fromkeys(bad, fault), kind=kind, record=False)

    assert [outcome.num_skipped_micros for outcome in outcomes] == [0, 0, len(bad), 0]
    assert [outcome.num_skipped_tokens for outcome in outcomes] == [0, 0, 2 * len(bad), 0]
    assert outcomes[2].reason == ("all_skipped" if len(bad) == 3 else "stepped")
    assert_bit_equal(ours, plain_loop(12, left_out=bad, kind=kind))


@pytest.mark.parametrize("guard", [dict(multiplier=3.0), dict(rule="robust", min_history=4)], ids=["mean", "robust"])
@pytest.mark.parametrize("normalize", ["micro", "window"])
@pytest.mark.parametrize("skipped_tokens", ["counted", "removed"])
def test_weights_verdicts_and_log_are_those_of_a_host_that_decides(tmp_path, guard, normalize, skipped_tokens):
    # given skips of every kind, a window wholly skipped, a norm that is not finite, and a last window that is short
    faults = {7: "spike", 10: "nan", 15: "spike", 16: "nan", 17: "spike_inf_derivative", 19: "inf_derivative"}
    faults[27] = "spike"

    # when
    told = []
    for decide in ("host", "device"):
        settings = dict(guard=guard | dict(skipped_tokens=skipped_tokens), normalize=normalize)
        ours, outcomes, run, state = guarded_loop(tmp_path / decide, 29, faults=faults, decide=decide, **settings)
        log = trimtab.open_log(run.folder)
        rows, steps = log.rows().numpy(), log.steps().numpy()
        events = [(event.kind, event.step, event.facts) for event in log.event_list() if event.kind != "end"]
        columns = {name: steps[name].tolist() for name in steps if name != "wall_s"}
        outcome = [(o.reason, o.loss, o.grad_norm, o.num_tokens, o.num_skipped_tokens) for o in outcomes]
        state.pop("run_id")
        told.append(
            (
                [value.tolist() for value in ours],
                repr(outcome),
                {name: repr(rows[name].tolist()) for name in rows},
                repr(columns),
                events,
                json.dumps(state),
            )
        )

    # then
    for host, device in zip(*told, strict=True):
        assert device == host
    assert {"spike", "nonfinite"} <= set(eval(told[0][2]["verdict"]))
    assert "nonfinite_norm" in told[0][1]
    assert "all_skipped" in told[0][1]


# Nothing waits.

_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.lift_fresh.default,
}


class WaitingOps(TorchDispatchMode):
    """Remembers operations for whose result, or whose figures from the host, a device would be waited for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func in _WAITING or by_mask:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def nothing_waits():
    with WaitingOps() as ops:
        yield
    assert ops.found == []


def test_the_detector_sees_what_waits():
    for look in (lambda x: x.item(), lambda x: bool(x > 0), lambda x: x[x > 0], lambda _: torch.tensor(2.0)):
        with pytest.raises(AssertionError), nothing_waits():
            look(torch.ones(()))


@pytest.mark.parametrize("normalize", ["micro", "window"])
@pytest.mark.parametrize("skipped_tokens", ["counted", "removed"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaler"])
def test_no_operation_of_a_run_waits_with_a_fused_optimizer(tmp_path, normalize, skipped_tokens, scaled):
    # given
    model = make_model().float()
    optimizer = make_optimizer(model, "fused")
    guard = GuardConfig(multiplier=3.0, decide="device", skipped_tokens=skipped_tokens)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    run = Run(
        tmp_path, model=model, optimizer=optimizer, accumulation=2, max_grad_norm=1.0, guard=guard, normalize=normalize
    )
    rows = torch.arange(2)

    # when a run of windows with skips, then one wholly skipped
    for i in range(10):
        losses = (model(torch.ones(2, 4)) - 1).pow(2).sum(1) * (100.0 if i in (5, 8, 9) else 1.0)
        with nothing_waits() if i else contextlib.nullcontext():  # the first one settles where to decide
            loss = run.micro_batch(losses, per="sample", rows=rows)
        scaler.scale(loss).backward()
        if run.window_complete:
            # A scaler's own step looks at what it found, in torch 2.13 by `.item()`: for a fused optimizer it does not.
            with nothing_waits() if i > 1 else contextlib.nullcontext():
                outcome = run.step(scaler if scaled else None)

    # then
    assert (outcome.reason, outcome.num_skipped_micros) == ("all_skipped", 2)
    run.close()


def test_a_scaler_that_is_switched_off_leaves_the_norm_to_the_guard(tmp_path):
    for decide in ("host", "device"):
        model = make_model()
        optimizer = make_optimizer(model, "fused")
        run = Run(None, model=model, optimizer=optimizer, guard=GuardConfig(rule="robust", decide=decide), record=False)
        run.micro_batch(sample_losses(model, 0, "inf_derivative"), per="sample", rows=[0, 1]).backward()
        outcome = run.step(torch.amp.GradScaler("cpu", enabled=False))
        run.close()

        assert outcome.reason == "nonfinite_norm"
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("decide", ["host", "device"])
def test_an_overflow_under_a_scaler_is_its_own_affair_and_a_skipped_window_keeps_its_scale(decide):
    model = nn.Linear(4, 1)
    optimizer = make_optimizer(model, "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = GuardConfig(rule="robust", decide=decide)
    run = Run(None, model=model, optimizer=optimizer, max_grad_norm=1.0, guard=guard, record=False)
    told = []
    for fault in (None, "skip", "overflow", "skip and overflow", None):
        losses = model(torch.ones(2, 4)).squeeze(1) ** 2 * (math.nan if fault and "skip" in fault else 1.0)
        scaler.scale(run.micro_batch(losses, per="sample", rows=[0, 1])).backward()
        if fault and "overflow" in fault:
            model.weight.grad.fill_(math.inf)
        outcome = run.step(scaler)
        told.append((outcome.reason, scaler.get_scale()))
    run.close()

    # an overflow that was planted into a window wholly skipped: the scaler sees it, and there was nothing to step by
    assert told == [
        ("stepped", 1024.0),
        ("all_skipped", 1024.0),
        ("scaler_overflow", 512.0),
        ("all_skipped", 256.0),
        ("stepped", 256.0),
    ]
    assert model.weight.isfinite().all()


# What the host hears late.


def test_a_skip_is_said_when_the_host_hears_of_it_with_its_own_step_and_row(tmp_path, caplog):
    model = make_model()
    guard = GuardConfig(multiplier=3.0, decide="device")
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "fused"), guard=guard)

    def micro_batch(i, fault=None):
        run.micro_batch(sample_losses(model, i, fault), per="sample", rows=[2 * i, 2 * i + 1]).backward()

    with caplog.at_level(logging.INFO, logger="trimtab"):
        for i in range(4):
            micro_batch(i)
            run.step()
        micro_batch(4, "nan")
        assert "Guard skipped" not in caplog.text
        run.step()
        assert "Guard skipped micro-batch 0 of step 5: nonfinite, loss nan; 2 of its rows" in caplog.text
        assert "row 8 the first" in caplog.text
    run.close()


def test_a_norm_that_is_not_finite_drops_the_step_at_once_and_is_told_later(tmp_path, caplog):
    # given a loss that is no spike, whose derivative is infinite
    model = make_model()
    optimizer = make_optimizer(model, "fused")
    run = Run(tmp_path, model=model, optimizer=optimizer, guard=GuardConfig(rule="robust", decide="device"))
    before = snapshot(model, optimizer)

    # when
    run.micro_batch(sample_losses(model, 0, "inf_derivative"), per="sample", rows=[0, 1]).backward()
    outcome = run.step()

    # then
    assert outcome.reason == "nonfinite_norm"
    assert_bit_equal(snapshot(model, optimizer)[:4], before)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        run.close()
    assert "Step 1: the gradient norm is nan" in caplog.text
    assert "first parameter with such a gradient: 0.weight." in caplog.text
    [event] = [event for event in trimtab.open_log(run.folder).event_list() if event.kind == "nonfinite_norm"]
    assert (event.step, event.facts["parameter"]) == (1, "0.weight")


def test_windows_without_a_supervised_token_are_no_steps_and_that_is_said_once(tmp_path, caplog):
    model = make_model()
    optimizer = make_optimizer(model, "sgd")
    run = Run(tmp_path, model=model, optimizer=optimizer, guard=GuardConfig(rule="robust", decide="device"))
    before = snapshot(model, optimizer)

    with caplog.at_level(logging.WARNING, logger="trimtab"):
        for i in range(2):
            losses = sample_losses(model, i, "nan")
            loss = run.micro_batch(losses, per="sample", rows=[0, 1], mask=torch.zeros(2, dtype=torch.bool))
            loss.backward()
            outcome = run.step()
        run.close()

    assert (loss.item(), outcome.reason) == (0.0, "no_tokens")
    assert math.isnan(outcome.loss)
    assert_bit_equal(snapshot(model, optimizer), before)
    assert caplog.text.count("Step 1 had no supervised token") == 1
    assert caplog.text.count("no supervised token") == 1


def test_a_lockup_is_raised_when_the_host_hears_of_it_and_the_device_goes_on_skipping(tmp_path):
    # given a level that stays at a hundredfold
    model = make_model()
    guard = dict(multiplier=3.0, max_consecutive_skips=2, on_lockup="raise")
    run = Run(
        tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), guard=GuardConfig(**guard, decide="device")
    )

    # when
    def micro_batch(i, fault=None):
        run.micro_batch(sample_losses(model, i, fault), per="sample", rows=[0, 1]).backward()

    for i in range(4):
        micro_batch(i)
        run.step()
    for i in range(4, 6):
        micro_batch(i, "spike")
        assert run.step().reason == "all_skipped"
    micro_batch(6, "spike")

    # then the third in a row is the one, and it was left out
    with pytest.raises(GuardLockupError, match="2 losses in a row"):
        run.step()
    assert run.step().reason == "all_skipped"
    run.close()


def test_a_lockup_that_rebaselines_is_the_same_on_device_and_host(tmp_path):
    faults = dict.fromkeys(range(9, 27), "spike")
    told = []
    for decide in ("host", "device"):
        guard = dict(multiplier=3.0, max_consecutive_skips=4)
        _, outcomes, run, _ = guarded_loop(tmp_path / decide, 27, faults=faults, decide=decide, guard=guard)
        verdicts = trimtab.open_log(run.folder).rows().numpy()["verdict"]
        told.append(([str(verdict) for verdict in verdicts], [outcome.reason for outcome in outcomes]))

    assert told[0] == told[1]
    assert "rebaselined" in told[0][0]


# State.


@pytest.mark.parametrize(("first", "second"), [("device", "host"), ("host", "device"), ("device", "device")])
def test_a_state_goes_from_one_decider_to_the_other_and_decides_as_the_uninterrupted_run(tmp_path, first, second):
    faults = {7: "spike", 8: "nan", 9: "spike", 16: "spike", 22: "spike"}  # the tenth is the first after the change
    whole, _, _, whole_state = guarded_loop(tmp_path / "whole", 24, faults=faults, decide="host")

    model = make_model()
    parts = (model, make_optimizer(model, "fused"))
    _, _, first_run, state = guarded_loop(tmp_path / "parts", 9, faults=faults, decide=first, parts=parts)
    state = json.loads(json.dumps(state))
    ours, _, _, state = guarded_loop(
        tmp_path / "parts", 15, faults=faults, decide=second, parts=parts, state=state, first=9
    )

    assert_bit_equal(ours, whole)
    assert state["guard"] == whole_state["guard"]
    assert not [event for event in trimtab.open_log(first_run.folder).event_list() if event.kind == "guard_disagrees"]


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


def test_a_state_holds_what_was_still_on_its_way_and_only_taking_it_waits(monkeypatch, caplog):
    # given figures that never come by themselves
    faults = {7: "spike", 8: "nan"}
    monkeypatch.setattr("trimtab.torch.judge.to_host", in_flight)
    model = make_model()
    guard = GuardConfig(multiplier=3.0, decide="device")
    run = Run(None, model=model, optimizer=make_optimizer(model, "fused"), guard=guard, record=False, max_grad_norm=1.0)

    # when
    with caplog.at_level(logging.INFO, logger="trimtab"):
        for i in range(9):
            run.micro_batch(sample_losses(model, i, faults.get(i)), per="sample", rows=[0, 1]).backward()
            run.step()
        assert "Guard skipped" not in caplog.text
        state = run.state_dict()

    # then
    assert caplog.text.count("Guard skipped") == 2
    assert (state["guard"]["num_judged"], state["guard"]["num_skipped"]) == (9, 2)
    run.close()


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize(("skipped_tokens", "divisor"), [("counted", 3), ("removed", 2)])
def test_the_reported_loss_leaves_out_what_was_skipped(decide, skipped_tokens, divisor):
    # given weights that stand still
    model = make_model()
    guard = GuardConfig(multiplier=3.0, decide=decide, skipped_tokens=skipped_tokens)
    run = Run(
        None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        accumulation=3,
        guard=guard,
        record=False,
    )
    returned = []
    for i in range(6):
        loss = run.micro_batch(sample_losses(model, i, "nan" if i == 4 else None), per="sample", rows=[0, 1])
        loss.backward()
        returned.append(loss.item())
        if run.window_complete:
            outcome = run.step()
    run.close()

    expected = (sample_losses(model, 3).mean() + sample_losses(model, 5).mean()).item() / divisor
    assert outcome.loss == pytest.approx(expected, rel=1e-12)
    assert returned[4] == 0.0
    assert (outcome.num_tokens, outcome.num_skipped_tokens) == (6, 2)


def test_a_step_that_goes_back_clears_the_history_on_device_and_host(tmp_path):
    # given a history, and a host that counts for itself and begins anew
    verdicts = []
    for decide in ("host", "device"):
        model = make_model()
        guard = GuardConfig(multiplier=3.0, decide=decide)
        run = Run(tmp_path / decide, model=model, optimizer=make_optimizer(model, "sgd"), guard=guard)
        for i in range(8):
            if i == 4:
                run._core.begin_step(1)
            losses = (model(torch.ones(1, 4).double()) * 0.0).flatten() + (100.0 if i >= 4 else 1.0)
            run.micro_batch(losses, per="sample", rows=range(4)).backward()
            run.step()
        run.close()
        verdicts.append([str(verdict) for verdict in trimtab.open_log(run.folder).rows().numpy()["verdict"]])

    assert verdicts[0] == verdicts[1]
    assert "spike" not in verdicts[0]


def test_a_device_that_decides_otherwise_than_the_host_is_said_once_and_recorded(tmp_path, caplog):
    # given a host guard whose history is another one
    model = make_model()
    run = Run(
        tmp_path,
        model=model,
        optimizer=make_optimizer(model, "sgd"),
        guard=GuardConfig(multiplier=3.0, decide="device"),
    )
    for i in range(4):
        run.micro_batch(sample_losses(model, i), per="sample", rows=[0, 1]).backward()
        run.step()
    run._gate.drain()
    run._core.guard.reset("for this test")

    # when
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        for i in range(4, 6):
            run.micro_batch(sample_losses(model, i, "spike"), per="sample", rows=[0, 1]).backward()
            outcome = run.step()
        run.close()

    # then what happened is what the device decided
    assert outcome.reason == "all_skipped"
    assert caplog.text.count("The device decided spike about micro-batch 0 of step 5") == 1
    events = [event for event in trimtab.open_log(run.folder).event_list() if event.kind == "guard_disagrees"]
    assert [event.step for event in events] == [5, 6]


# The mask and the statistics.


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed and used again"])
@pytest.mark.parametrize("decide", ["host", "device"])
def test_running_statistics_never_saw_a_skipped_batch(decide, is_closed):
    def parts():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        return model, make_optimizer(model, "sgd")

    def losses_of(model, i, scale=1.0):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) * scale
        return model(x).pow(2).flatten() * scale

    # given ten batches, of which the eighth is a thousandfold
    model, optimizer = parts()
    guard = GuardConfig(multiplier=3.0, decide=decide)
    with Run(None, model=model, optimizer=optimizer, accumulation=2, guard=guard, record=False) as run:
        for i in range(10):
            losses = losses_of(model, i, 1e3 if i == 7 else 1.0)
            run.micro_batch(losses, per="sample", rows=range(8)).backward()
            if i % 2:
                run.step()
            if i == 3 and is_closed:
                run.close()

    # when a plain loop never sees that one
    oracle, its_optimizer = parts()
    for i in range(10):
        if i != 7:
            (losses_of(oracle, i).sum() / 8 / 2).backward()
        if i % 2:
            its_optimizer.step()
            its_optimizer.zero_grad()

    # then
    assert oracle[1].num_batches_tracked.item() == 9
    for name, value in oracle.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("decide", ["host", "device"])
def test_a_kept_micro_batch_without_tokens_leaves_what_it_leaves_without_a_guard(decide):
    # given two experts, the second of which is reached by ignored labels alone, and weight decay
    def train(guard):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        with Run(None, model=model, optimizer=optimizer, accumulation=2, guard=guard, record=False) as run:
            for expert in model:
                losses = expert(torch.ones(1, 1).double()).flatten() ** 2
                mask = torch.tensor([expert is model[0]])
                run.micro_batch(losses, per="sample", rows=[0], mask=mask).backward()
            assert run.step().reason == "stepped"
        return snapshot(model, optimizer)

    # then
    assert_bit_equal(train(GuardConfig(rule="robust", decide=decide)), train(None))


def test_a_foreign_backward_after_the_step_is_not_masked(tmp_path):
    model = make_model()
    guard = GuardConfig(multiplier=3.0, decide="device")
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), guard=guard, record=False)
    run.micro_batch(sample_losses(model, 0, "nan"), per="sample", rows=[0, 1]).backward()
    run.step()

    sample_losses(model, 1).sum().backward()

    assert model[0].weight.grad.abs().sum() > 0
    run.close()


def test_an_outcome_that_has_not_arrived_says_so_and_its_repr_does_not_wait():
    facts = {"reason": HostNumber(in_flight(torch.ones(1)), 0), "num_skipped_micros": 0}

    assert repr(StepOutcome(facts)) == "StepOutcome(pending)"
    assert repr(StepOutcome({"reason": 1, "num_skipped_micros": 2})) == (
        "StepOutcome(reason='all_skipped', num_skipped_micros=2)"
    )
