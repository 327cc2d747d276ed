"""`loss = guard(loss)` against loops in plain torch that never saw the micro-batch, and against `guard.check`."""

import gc
import logging
import math
import random
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import GuardLockupError, LossGuard, PerTokenLossGuard, UsageError

ACCUMULATION = 3
PLACES = {"first": {0}, "middle": {1}, "last": {2}, "all": {0, 1, 2}}
FAULTS = ["finite spike", "spike with inf derivative", "NaN activation", "NaN loss"]
OPTIMIZERS = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "foreach AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.1),
    "fused SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True),
}
BAD_WINDOW, NUM_WINDOWS = 2, 4


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch_of(window, micro):
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(10 * window + micro))


def loss_of(model, x, fault=None):
    if fault == "NaN activation":
        x = torch.where(torch.arange(16)[:, None] == 3, math.nan, x)
    y = model(x)
    loss = ((y - 1) ** 2).mean()
    if fault == "finite spike":
        return loss * 100
    if fault == "spike with inf derivative":
        return loss * 100 + (y - y.detach()).abs().sum().sqrt()
    if fault == "inf derivative":
        return loss + (y - y.detach()).abs().sum().sqrt()
    return loss * math.nan if fault == "NaN loss" else loss


def train(optimizer_name, *, fault, places, kind):
    """A training of four windows. `kind`: with the "guard", "plain", or in plain torch "without" the bad ones."""
    model = make_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    guard = LossGuard(multiplier=3.0, model=model) if kind == "guard" else None
    for window in range(NUM_WINDOWS):
        bad = places if window == BAD_WINDOW else set()
        for micro in range(ACCUMULATION):
            if kind == "without" and micro in bad:
                continue
            loss = loss_of(model, batch_of(window, micro), fault if micro in bad else None)
            if guard is not None:
                loss = guard(loss)
            (loss / ACCUMULATION).backward()
        if kind == "without" and len(bad) == ACCUMULATION:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, guard


def tensors_of(model, optimizer):
    moments = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    return [*model.state_dict().values(), *map(torch.as_tensor, moments)]


def assert_same(one, other):
    found, expected = tensors_of(*one[:2]), tensors_of(*other[:2])
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_skip_is_bit_for_bit_the_training_that_never_saw_the_micro_batch(fault, place, optimizer):
    guarded = train(optimizer, fault=fault, places=PLACES[place], kind="guard")
    assert_same(guarded, train(optimizer, fault=fault, places=PLACES[place], kind="without"))
    guarded[2].state_dict()
    assert guarded[2].num_skipped == len(PLACES[place])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_guard_that_finds_nothing_changes_no_bit(optimizer):
    guarded = train(optimizer, fault=None, places=set(), kind="guard")
    assert_same(guarded, train(optimizer, fault=None, places=set(), kind="plain"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_ordinary_loss_whose_gradient_is_not_finite_drops_the_whole_step(optimizer, caplog):
    guarded = train(optimizer, fault="inf derivative", places={1}, kind="guard")
    assert_same(guarded, train(optimizer, fault="inf derivative", places={0, 1, 2}, kind="without"))
    (warning,) = [line for line in caplog.messages if "gradient norm" in line]
    assert "Step 3: the gradient norm is nan" in warning
    assert "first parameter with such a gradient: 0.weight" in warning


def test_a_skipped_loss_is_zero_of_the_same_dtype_and_hangs_on_its_graph():
    model = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    guard = LossGuard(multiplier=2.0, model=model)
    loss = model(torch.full((1, 2), math.inf, dtype=torch.bfloat16)).sum()
    found = guard(loss)
    found.backward()
    assert (found.item(), found.dtype, found.shape) == (0.0, torch.bfloat16, torch.Size([]))
    assert torch.equal(model.weight.grad, torch.zeros(1, 2, dtype=torch.bfloat16))


def test_gradients_of_parameters_that_are_asked_for_by_name_are_masked_too():
    model = nn.Linear(2, 1)
    guard = LossGuard(multiplier=2.0, model=model)
    found = torch.autograd.grad(guard(model(torch.full((1, 2), math.nan)).sum()), list(model.parameters()))
    assert [gradient.tolist() for gradient in found] == [[[0.0, 0.0]], [0.0]]


def test_running_statistics_of_a_skipped_micro_batch_are_unlearned():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    guard = LossGuard(multiplier=2.0, model=model)
    guard(model(torch.ones(2, 4)).sum() * 0 + 1).backward()
    before = {name: value.clone() for name, value in model[1].state_dict().items()}
    guard(model(torch.full((2, 4), 1e3)).sum() * math.nan).backward()
    assert all(torch.equal(value, before[name]) for name, value in model[1].state_dict().items())


def test_running_statistics_of_a_micro_batch_without_tokens_are_those_without_a_guard():
    def statistics_after(guarded):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        guard = PerTokenLossGuard(multiplier=2.0, model=model)
        for num_tokens in (8, 0):
            loss_sum = model(torch.full((2, 4), 1.0 + num_tokens)).sum() * 0 + num_tokens
            (guard(loss_sum, num_tokens) if guarded else loss_sum).backward()
        return model[1].state_dict()

    torch.manual_seed(0)
    found = statistics_after(True)
    torch.manual_seed(0)
    expected = statistics_after(False)
    assert found["num_batches_tracked"] == 2
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# What decides: the same as `check`, verdict for verdict.


def random_losses(seed, count):
    dice = random.Random(seed)
    level, losses = 2.0, []
    for _ in range(count):
        level += (dice.random() < 0.01) * dice.uniform(1, 6)
        loss = round(level + dice.gauss(0, 0.3), 1)
        pick = dice.random()
        losses.append(loss * 9 if pick < 0.08 else [math.nan, math.inf, -math.inf, loss][int(pick > 0.1) * 3])
    return losses


RULES = {
    "mean": dict(multiplier=1.5, max_consecutive_skips=4),
    "robust": dict(rule="robust", k=4.0, window_size=16, min_history=5, max_consecutive_skips=6),
}


def is_skipped(guard, weight, *figures):
    """Whether a call of the guard left a loss out whose gradient would have been 1."""
    weight.grad = None
    if math.isfinite(figures[0]):
        guard(weight - weight.detach() + figures[0], *figures[1:]).backward()
    else:
        guard(weight * figures[0], *figures[1:]).backward()
    return weight.grad.item() == 0


class OneWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_verdict_and_the_state_are_those_of_check(rule, seed, caplog):
    caplog.set_level(logging.CRITICAL, "trimtab")
    model = OneWeight()
    guard, host = LossGuard(**RULES[rule], model=model), LossGuard(**RULES[rule])
    losses = random_losses(seed, 700)
    found = [is_skipped(guard, model.weight, loss) for loss in losses]
    expected = [not host.check(loss).keep for loss in losses]
    assert found == expected
    assert 10 < sum(found) < 690
    assert guard.state_dict() == host.state_dict()


def test_tokens_weigh_the_loss_and_come_as_numbers_or_tensors(caplog):
    caplog.set_level(logging.CRITICAL, "trimtab")
    model = OneWeight()
    guard, host = PerTokenLossGuard(**RULES["mean"], model=model), PerTokenLossGuard(**RULES["mean"])
    dice = random.Random(3)
    for loss in random_losses(3, 200):
        num_tokens = dice.choice([0, 1, 3, 100])
        tokens = dice.choice([num_tokens, torch.tensor(num_tokens), torch.tensor(num_tokens, dtype=torch.int16)])
        is_left_out = is_skipped(guard, model.weight, loss * num_tokens if num_tokens else math.nan, tokens)
        verdict = host.check(loss * num_tokens, num_tokens)
        # Without tokens the verdict is to keep, and 0 / 0 is a gradient that does not count.
        assert is_left_out == (not verdict.keep or num_tokens == 0)
    assert guard.state_dict() == host.state_dict()


def test_a_saved_guard_goes_on_as_the_uninterrupted_one(caplog):
    caplog.set_level(logging.CRITICAL, "trimtab")
    model, losses = OneWeight(), random_losses(4, 200)
    whole = LossGuard(**RULES["robust"])
    expected = [not whole.check(loss).keep for loss in losses]
    # given: the first half on a device, saved between two steps
    first = LossGuard(**RULES["robust"], model=model)
    found = [is_skipped(first, model.weight, loss) for loss in losses[:100]]
    state = first.state_dict()
    del first
    # when: a quarter on the host, the last one on a device again, which had other losses before
    host = LossGuard(**RULES["robust"])
    host.load_state_dict(state)
    found += [not host.check(loss).keep for loss in losses[100:150]]
    last = LossGuard(**RULES["robust"], model=model)
    is_skipped(last, model.weight, 77.0)
    last.load_state_dict(host.state_dict())
    found += [is_skipped(last, model.weight, loss) for loss in losses[150:]]
    # then
    assert found == expected
    assert last.state_dict() == whole.state_dict()


def test_check_reset_and_calls_share_one_history():
    model = OneWeight()
    guard = LossGuard(multiplier=2.0, model=model)
    assert not is_skipped(guard, model.weight, 1.0)
    assert guard.check(1.0).reason == "warmup"
    guard.remember_kept([1.0])
    assert is_skipped(guard, model.weight, 9.0)
    assert guard.check(9.0).reason == "spike"
    assert guard.num_skipped == 2
    guard.reset("another stage")
    assert not is_skipped(guard, model.weight, 9.0)
    assert guard.check(9.0).reason == "warmup"


def test_a_lock_up_that_raises_does_so_when_the_host_hears_of_it():
    model = OneWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = LossGuard(multiplier=2.0, max_consecutive_skips=2, on_lockup="raise", model=model)
    for loss in (1.0, 1.0, 1.0, 5.0, 5.0):
        assert is_skipped(guard, model.weight, loss) == (loss > 1)
        optimizer.step()
    # when, then: the device goes on skipping, the step that follows tells
    assert is_skipped(guard, model.weight, 5.0)
    with pytest.raises(GuardLockupError, match="2 losses in a row were skipped"):
        optimizer.step()
    assert is_skipped(guard, model.weight, 5.0)
    guard.reset("seen")
    assert not is_skipped(guard, model.weight, 5.0)


def test_what_the_device_decided_is_known_after_the_next_step():
    model = OneWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = LossGuard(multiplier=2.0, model=model)
    for loss in (1.0, 1.0, 1.0, 5.0):
        guard(model.weight * loss).backward()
    assert (guard.num_judged, guard.num_skipped) == (0, 0)
    optimizer.step()
    assert (guard.num_judged, guard.num_skipped) == (4, 1)


# Steps.


def test_every_optimizer_has_a_window_of_its_own():
    # given: two optimizers over one model, one steps twice as often
    model = make_model()
    often = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    seldom = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    guard = LossGuard(multiplier=2.0, model=model)
    for window in range(4):
        guard(loss_of(model, batch_of(window, 0))).backward()
        often.step()
    seldom.step()
    # when: a kept micro-batch, then a skipped one
    guard(loss_of(model, batch_of(9, 0))).backward()
    often.step()
    guard(loss_of(model, batch_of(9, 1), "NaN activation")).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    often.step()
    seldom.step()
    # then
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"2.weight", "2.bias"}


def test_what_the_guard_did_not_judge_is_none_of_its_business():
    # given: a model whose last micro-batch was skipped, and its step dropped
    model, other = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    guard = LossGuard(multiplier=2.0, model=model)
    guard(loss_of(model, batch_of(0, 0), "NaN activation")).backward()
    loss_of(other, batch_of(0, 0)).backward()
    foreign.step()
    assert not torch.equal(other[0].weight, model[0].weight)
    optimizer.step()
    optimizer.zero_grad()
    # when: the user trains on something that the guard is not asked about
    loss_of(model, batch_of(0, 1)).backward()
    gradient = model[0].weight.grad.clone()
    optimizer.step()
    # then
    expected = make_model()
    loss_of(expected, batch_of(0, 1)).backward()
    assert torch.equal(gradient, expected[0].weight.grad)
    assert not torch.equal(model[0].weight, expected[0].weight)


def test_a_window_without_any_token_takes_no_step_and_says_so_once(caplog):
    model = OneWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    guard = PerTokenLossGuard(multiplier=2.0, model=model)
    for _ in range(3):
        guard(model.weight * 0 / 0, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.weight.item() == 1.0
    assert len([line for line in caplog.messages if "no supervised token at all" in line]) == 1


@pytest.mark.parametrize("optimizer_name", ["fused AdamW", "foreach AdamW"])
def test_a_gradient_scaler_goes_on_as_if_the_window_had_not_been(optimizer_name, caplog):
    def run(*, bad):
        model = make_model()
        optimizer = OPTIMIZERS[optimizer_name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        guard = LossGuard(multiplier=3.0, model=model)
        for window in range(5):
            fault = {2: "NaN activation", 3: "inf derivative"}.get(window) if bad else None
            if not bad and window in (2, 3):
                continue
            loss = guard(loss_of(model, batch_of(window, 0), fault))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        guard.state_dict()
        return model, optimizer, guard.num_skipped, scaler.get_scale()

    found, expected = run(bad=True), run(bad=False)
    assert_same(found, expected)
    # The skip leaves the scale as it is; the gradient that is not finite is the scaler's own affair, and halves it.
    assert (found[2], found[3]) == (1, 2.0)
    assert not any("gradient norm" in line for line in caplog.messages)


@pytest.mark.parametrize("losses", [(1.0, 1.0), (1.0, 9.0), (9.0, 1.0)])
def test_one_backward_for_two_calls_is_refused(losses):
    model = OneWeight()
    guard = LossGuard(multiplier=2.0, model=model)
    guard.remember_kept([1.0, 1.0, 1.0])
    with pytest.raises(UsageError, match="losses of two micro-batches"):
        sum(guard(model.weight * loss) for loss in losses).backward()
    assert model.weight.grad is None


def test_calls_that_need_no_backward_are_let_be(caplog):
    model = OneWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = LossGuard(multiplier=2.0, model=model)
    with torch.no_grad():  # an evaluation
        guard(model.weight * 1.0)
    guard(model.weight * 1.0).backward()
    guard(torch.tensor(1.0)), guard(model.weight * 1.0)
    optimizer.step()  # whatever was meant by that one
    guard(model.weight * 9.0).backward()
    guard(model.weight * 1.0).backward()
    assert not caplog.messages


# What it costs: nothing that waits, nothing that breaks a graph.

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
}


class HostReads(TorchDispatchMode):
    """Names the operations whose result the host must have before it can go on."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func in WAITING or by_mask:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("optimizer_name", "num_reads"), [("fused AdamW", 0), ("foreach AdamW", 1)])
def test_a_window_reads_nothing_but_one_flag_where_the_optimizer_is_not_fused(rule, optimizer_name, num_reads):
    model = make_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    guard = LossGuard(**RULES[rule], model=model)
    fault = {7: "NaN activation", 8: "finite spike"}
    batches = [batch_of(window, 0) for window in range(10)]
    for window, batch in enumerate(batches):
        loss = loss_of(model, batch, fault.get(window))
        with HostReads() as reads:
            loss = guard(loss)
            loss.backward()
        assert reads.names == []
        with HostReads() as reads:
            optimizer.step()
        # A foreach step that is taken also reads its own counters of steps, which lie on the CPU.
        assert len(reads.names) == num_reads or (num_reads and window not in fault)
        optimizer.zero_grad()
    assert guard.num_skipped == 2


@pytest.mark.parametrize("rule", RULES)
def test_a_call_runs_on_a_device_that_has_no_values_to_wait_for(rule):
    model = nn.Linear(4, 1)
    guard = LossGuard(**RULES[rule], model=model)
    model.to("meta")
    for _ in range(3):
        loss = guard(model(torch.empty(2, 4, device="meta")).mean())
        loss.backward()
    assert loss.device.type == "meta"


@pytest.mark.parametrize(
    ("rule", "backend"),
    [
        ("mean", "aot_eager"),
        pytest.param("robust", "aot_eager", marks=pytest.mark.long),
        pytest.param("mean", "inductor", marks=pytest.mark.long),
        pytest.param("robust", "inductor", marks=pytest.mark.long),
    ],
)
def test_a_compiled_step_is_one_graph_and_decides_as_an_eager_one(rule, backend, caplog):
    caplog.set_level(logging.CRITICAL, "trimtab")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = OneWeight()
    guard, host = LossGuard(**RULES[rule], model=model), LossGuard(**RULES[rule])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)

    def loss_and_guard(x):
        return guard(model.weight - model.weight.detach() + x.sum())

    with warnings.catch_warnings(action="ignore"):  # what a compiler says of its own imports
        compiled = torch.compile(loss_and_guard, fullgraph=True, backend=backend)
        found = []
        for loss in random_losses(5, 300):
            compiled(torch.tensor([loss], dtype=torch.float64)).backward()
            found.append(model.weight.grad.item() == 0)
            optimizer.step()
            optimizer.zero_grad()
    assert found == [not host.check(loss).keep for loss in random_losses(5, 300)]
    assert guard.state_dict() == host.state_dict()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_compiled_windows_of_several_micro_batches_are_heard_of_after_each_step():
    torch._dynamo.reset()
    model = OneWeight()
    guard = LossGuard(multiplier=2.0, model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compiled = torch.compile(lambda x: guard(model.weight * x.sum()), fullgraph=True, backend="eager")
    with warnings.catch_warnings(action="ignore"):
        for window in range(3):
            for loss in (1.0, 1.0, 1.0, 9.0):
                compiled(torch.tensor([loss], dtype=torch.float64)).backward()
            guard(model.weight * 1.0).backward()
            optimizer.step()
            assert (guard.num_judged, guard.num_skipped) == (5 * window + 5, window + 1)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_parameter_that_a_compiled_step_trains_late_is_hooked_from_the_next_step_on(is_frozen):
    # given: a compiled step that does not train a second weight, which is frozen or not yet there
    torch._dynamo.reset()
    model = OneWeight()
    if is_frozen:
        model.late = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)
    guard = LossGuard(multiplier=2.0, model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loss_and_guard(x):
        return guard(sum(parameter for parameter in model.parameters()) * x.sum())

    with warnings.catch_warnings(action="ignore"):
        compiled = torch.compile(loss_and_guard, fullgraph=True, backend="eager")
        compiled(torch.ones(1, dtype=torch.float64)).backward()
        optimizer.step()
        # when: it is trained too, and a step later a micro-batch is skipped
        model.late = nn.Parameter(torch.ones((), dtype=torch.float64))
        compiled(torch.ones(1, dtype=torch.float64)).backward()
        optimizer.step()
        model.zero_grad()
        compiled(torch.full((1,), math.nan, dtype=torch.float64)).backward()
    # then
    assert (model.weight.grad.item(), model.late.grad.item()) == (0.0, 0.0)


def test_more_decisions_than_the_device_holds_are_counted_and_the_history_goes_on(caplog):
    torch._dynamo.reset()
    model = OneWeight()
    guard, host = LossGuard(**RULES["mean"], model=model), LossGuard(**RULES["mean"])
    losses = random_losses(6, 1100)
    compiled = torch.compile(lambda x: guard(model.weight * x.sum()), fullgraph=True, backend="eager")
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for loss in losses:
            compiled(torch.tensor([loss], dtype=torch.float64))
    state = guard.state_dict()
    for loss in losses:
        host.check(loss)
    expected = host.state_dict()
    assert state["rule"] == expected["rule"]
    assert state["streak"] | {"num_nonfinite": 0} == expected["streak"] | {"num_nonfinite": 0}
    assert (state["num_judged"], state["num_skipped"]) == (expected["num_judged"], expected["num_skipped"])
    assert any("76 verdicts are counted" in line for line in caplog.messages)
    assert [guard.check(loss).reason for loss in losses[:50]] == [host.check(loss).reason for loss in losses[:50]]


# The door.


def test_a_guard_that_is_off_hands_the_loss_through():
    model = make_model()
    guard = LossGuard(model=model)
    loss = loss_of(model, batch_of(0, 0), "NaN loss")
    assert guard(loss) is loss
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


def test_a_guard_without_a_model_says_what_to_pass():
    with pytest.raises(UsageError, match=r"write LossGuard\(..., model=model\), or ask guard\.check"):
        LossGuard(multiplier=2.0)(torch.ones(()))


def test_a_process_group_without_a_model_has_no_effect_and_says_so():
    with pytest.warns(UserWarning, match="process_group has no effect on a guard without a model"):
        LossGuard(multiplier=2.0, process_group=object())


@pytest.mark.parametrize("loss", [1.0, torch.ones(2), torch.ones((), dtype=torch.int64)])
def test_a_loss_that_is_none_is_refused(loss):
    guard = LossGuard(multiplier=2.0, model=OneWeight())
    with pytest.raises(UsageError, match=r"takes one loss, a 0-d tensor of a float dtype"):
        guard(loss)


@pytest.mark.parametrize("num_tokens", [-1, 1.0, True, torch.ones(2, dtype=torch.int64), torch.ones(()), "3"])
def test_a_count_of_tokens_that_is_none_is_refused(num_tokens):
    guard = PerTokenLossGuard(multiplier=2.0, model=OneWeight())
    with pytest.raises(UsageError, match=r"num_tokens is .*: expected a whole number of 0 or more"):
        guard(torch.ones((), requires_grad=True), num_tokens)


def test_a_model_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"model= must be the torch\.nn\.Module"):
        LossGuard(multiplier=2.0, model="gpt2")


def test_no_hook_outlives_the_guard():
    from torch.optim import optimizer as optimizers

    gc.collect()  # those of other tests
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = len(optimizers._global_optimizer_pre_hooks)
    guard = LossGuard(multiplier=2.0, model=model)
    guard(loss_of(model, batch_of(0, 0))).backward()
    optimizer.step()
    assert len(optimizers._global_optimizer_pre_hooks) == before + 1
    del guard
    assert len(optimizers._global_optimizer_pre_hooks) == before
    assert not any(parameter._backward_hooks for parameter in model.parameters())
