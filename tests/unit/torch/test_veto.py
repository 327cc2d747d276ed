"""A vetoed step leaves no trace: parameters, moments and step counts go on as if it had never been asked for."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import UsageError
from trimtab.torch.schedule import loss_scale
from trimtab.torch.veto import StepVeto

NUM_STEPS = 5
TENSOR_DROP = torch.ones((), dtype=torch.bool)
DROPS = {"host": True, "device": TENSOR_DROP}
KEEPS = {"host": False, "device": ~TENSOR_DROP}


def _groups(parameters):
    """Two groups with settings of their own."""
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.03}]


FUSED = {
    "adamw": lambda p: torch.optim.AdamW(_groups(p), lr=0.1, weight_decay=0.1, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(_groups(p), lr=0.1, amsgrad=True, maximize=True, fused=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), weight_decay=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(_groups(p), lr=0.1, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(_groups(p), lr=0.1, weight_decay=0.1, fused=True),
    "sgd momentum": lambda p: torch.optim.SGD(_groups(p), lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True, fused=True),
    "sgd dampening": lambda p: torch.optim.SGD(_groups(p), lr=0.1, momentum=0.9, dampening=0.5, fused=True),
}
OTHERS = {
    "adamw foreach": lambda p: torch.optim.AdamW(_groups(p), lr=0.1, weight_decay=0.1, foreach=True),
    "adam amsgrad": lambda p: torch.optim.Adam(_groups(p), lr=0.1, amsgrad=True, foreach=False),
    "adam mixed groups": lambda p: torch.optim.Adam(
        [{"params": p[:2]}, {"params": p[2:], "fused": False}], lr=0.1, fused=True
    ),
    "sgd momentum": lambda p: torch.optim.SGD(_groups(p), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "sgd dampening": lambda p: torch.optim.SGD(_groups(p), lr=0.1, momentum=0.9, dampening=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(_groups(p), lr=0.1, lr_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(_groups(p), lr=0.1, weight_decay=0.1),
    "radam": lambda p: torch.optim.RAdam(_groups(p), lr=0.1, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(_groups(p), lr=0.1, momentum=0.9, centered=True),
    "adamax": lambda p: torch.optim.Adamax(_groups(p), lr=0.1, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(_groups(p), lr=0.1, weight_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(_groups(p), lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(_groups(p), lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(_groups(p), lr=0.1),
}
if hasattr(torch.optim, "Muon"):
    OTHERS["muon"] = lambda p: torch.optim.Muon(p[:2], lr=0.1)
ALL = {**{f"fused {name}": make for name, make in FUSED.items()}, **OTHERS}


def _parameters():
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(3, 4), (2, 3), (5,), (4,)]]


def _gradients_of(step, *, value=None):
    """Those of one step; the last parameter never has one. `value` instead of numbers: what a bad window leaves."""
    generator = torch.Generator().manual_seed(100 + step)
    gradients = [torch.randn(shape, generator=generator) for shape in [(3, 4), (2, 3), (5,)]]
    return [*(gradient if value is None else torch.full_like(gradient, value) for gradient in gradients), None]


def _give(parameters, gradients):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()


def _trained(make, steps, *, vetoed=(), by="host", value=math.nan):
    """Parameters and optimizer after `steps`; a vetoed one has bad gradients and the veto's flag."""
    parameters = _parameters()
    optimizer = make(parameters)
    veto = StepVeto(optimizer) if vetoed else None
    for step in steps:
        _give(parameters, _gradients_of(step, value=value if step in vetoed else None))
        if veto is not None:
            veto.drop_next(DROPS[by] if step in vetoed else KEEPS[by])
        optimizer.step()
        optimizer.zero_grad()
    return parameters, optimizer


def _states(parameters, optimizer):
    return [optimizer.state.get(parameter, {}) for parameter in parameters]


def _assert_bit_equal(ours, theirs):
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(_states(*ours), _states(*theirs), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
            assert same, name


@pytest.mark.parametrize("value", [math.nan, 0.0], ids=str)
@pytest.mark.parametrize("vetoed", [{0}, {2}, {0, 1, 3}], ids=str)
@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("name", ALL)
def test_after_a_vetoed_step_training_goes_on_as_if_it_had_never_been(name, by, vetoed, value):
    # When
    ours = _trained(ALL[name], range(NUM_STEPS), vetoed=vetoed, by=by, value=value)

    # Then
    theirs = _trained(ALL[name], [step for step in range(NUM_STEPS) if step not in vetoed])
    _assert_bit_equal(ours, theirs)


@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("name", ALL)
def test_a_vetoed_step_itself_moves_nothing(name, by):
    ours = _trained(ALL[name], range(3), vetoed={2}, by=by)

    _assert_bit_equal(ours, _trained(ALL[name], range(2)))


@pytest.mark.parametrize("name", FUSED)
def test_a_vetoed_first_step_of_a_fused_optimizer_leaves_at_most_zeros_as_its_state(name):
    parameters, optimizer = _trained(FUSED[name], range(1), vetoed={0}, by="device")

    for parameter, before in zip(parameters, _parameters(), strict=True):
        assert torch.equal(parameter, before)
    for state in _states(parameters, optimizer):
        assert all(not value.any() for value in state.values())


@pytest.mark.parametrize("by", ["host", "device", None])
@pytest.mark.parametrize("name", ALL)
def test_a_veto_that_is_not_used_changes_no_bit_and_no_attribute(name, by):
    # Given
    parameters = _parameters()
    optimizer = ALL[name](parameters)
    attributes = set(vars(optimizer))
    veto = StepVeto(optimizer)

    # When
    for step in range(NUM_STEPS):
        _give(parameters, _gradients_of(step))
        if by is not None:
            veto.drop_next(KEEPS[by])
        optimizer.step()

    # Then
    _assert_bit_equal((parameters, optimizer), _trained(ALL[name], range(NUM_STEPS)))
    assert set(vars(optimizer)) == attributes


class _Waits(TorchDispatchMode):
    """Counts the looks of the host at a value."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make", "num_looks"),
    [
        (FUSED["adamw"], 0),
        (FUSED["adagrad"], 0),
        (FUSED["sgd momentum"], 0),
        (FUSED["sgd dampening"], 1),
        # After a look that says "drop", an optimizer without gradients looks at nothing of its own.
        (OTHERS["adamw foreach"], 1),
        (OTHERS["adam mixed groups"], 1),
    ],
)
def test_a_fused_optimizer_is_vetoed_without_a_look_and_any_other_with_one(make, num_looks):
    parameters = _parameters()
    optimizer = make(parameters)
    veto = StepVeto(optimizer)
    _give(parameters, _gradients_of(0))

    with _Waits() as waits:
        veto.drop_next(TENSOR_DROP)
        optimizer.step()

    assert waits.num == num_looks


def test_fused_sgd_with_dampening_is_looked_at_until_its_buffers_are_made():
    # Given
    parameters = _parameters()
    optimizer = FUSED["sgd dampening"](parameters)
    veto = StepVeto(optimizer)
    _give(parameters, _gradients_of(0))
    veto.drop_next(~TENSOR_DROP)
    optimizer.step()

    # When
    with _Waits() as waits:
        veto.drop_next(TENSOR_DROP)
        optimizer.step()

    # Then
    assert waits.num == 0


def test_a_flag_holds_for_one_step_also_where_that_raises():
    # Given
    parameters = _parameters()
    optimizer = FUSED["adamw"](parameters)
    veto = StepVeto(optimizer)
    raises = optimizer.register_step_pre_hook(lambda *_: 1 / 0)  # after the veto's own
    _give(parameters, _gradients_of(0))
    veto.drop_next(TENSOR_DROP)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    raises.remove()

    # When
    optimizer.step()

    # Then
    _assert_bit_equal((parameters, optimizer), _trained(FUSED["adamw"], range(1)))
    assert not hasattr(optimizer, "found_inf")


def test_a_flag_that_is_said_again_replaces_the_one_before():
    parameters = _parameters()
    optimizer = OTHERS["sgd momentum"](parameters)
    veto = StepVeto(optimizer)
    _give(parameters, _gradients_of(0))

    veto.drop_next(True)
    veto.drop_next(False)
    optimizer.step()

    _assert_bit_equal((parameters, optimizer), _trained(OTHERS["sgd momentum"], range(1)))


@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("first_says", [False, True])
@pytest.mark.parametrize("make", [FUSED["sgd momentum"], OTHERS["adamw foreach"]], ids=["fused", "foreach"])
def test_of_two_vetoes_on_one_optimizer_either_drops_the_step(make, first_says, by):
    # Given
    parameters = _parameters()
    optimizer = make(parameters)
    first, second = StepVeto(optimizer), StepVeto(optimizer)
    attributes = set(vars(optimizer))

    # When
    _give(parameters, _gradients_of(0, value=math.nan))
    for veto, drops in ((first, first_says), (second, not first_says)):
        veto.drop_next((DROPS if drops else KEEPS)[by])
    optimizer.step()
    assert set(vars(optimizer)) == attributes
    _give(parameters, _gradients_of(1))
    optimizer.step()

    # Then
    _assert_bit_equal((parameters, optimizer), _trained(make, [1]))


def test_a_removed_veto_drops_nothing_and_keeps_nothing_alive():
    # Given
    parameters = _parameters()
    optimizer = FUSED["adamw"](parameters)
    veto = StepVeto(optimizer)
    veto.drop_next(True)

    # When
    veto.remove()
    veto.remove()
    _give(parameters, _gradients_of(0))
    optimizer.step()

    # Then
    _assert_bit_equal((parameters, optimizer), _trained(FUSED["adamw"], range(1)))
    gone = weakref.ref(veto)
    del veto
    gc.collect()
    assert gone() is None


def test_sparse_gradients_are_dropped_with_the_others():
    def trained(steps, *, vetoed=()):
        table = nn.Parameter(torch.arange(8.0).view(4, 2))
        optimizer = torch.optim.SparseAdam([table], lr=0.1)
        veto = StepVeto(optimizer)
        for step in steps:
            values = torch.full((2, 2), math.nan if step in vetoed else 1.0 + step)
            table.grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), values, (4, 2), check_invariants=True)
            veto.drop_next(TENSOR_DROP if step in vetoed else ~TENSOR_DROP)
            optimizer.step()
        return [table], optimizer

    _assert_bit_equal(trained(range(3), vetoed={1}), trained([0, 2]))


# A closure computes the gradients after the flag was looked at.


def _trained_by_closure(make, steps, *, vetoed=(), by="host", as_keyword=False):
    parameters = _parameters()
    optimizer = make(parameters)
    veto = StepVeto(optimizer)
    num_calls = 0
    for step in steps:

        def closure(step=step):
            nonlocal num_calls
            num_calls += 1
            optimizer.zero_grad()
            gradients = _gradients_of(step, value=math.nan if step in vetoed else None)
            # A bowl whose bottom is elsewhere in every step: LBFGS needs gradients that depend on the place.
            loss = sum(((p - g) ** 2).sum() for p, g in zip(parameters, gradients, strict=True) if g is not None)
            loss.backward()
            return loss

        veto.drop_next((DROPS if step in vetoed else KEEPS)[by])
        optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
    assert num_calls >= len(list(steps))
    return parameters, optimizer


@pytest.mark.parametrize("as_keyword", [False, True])
@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("name", ["fused sgd dampening", "fused adamw", "adamw foreach", "sgd momentum"])
def test_what_a_closure_leaves_counts_as_little(name, by, as_keyword):
    ours = _trained_by_closure(ALL[name], range(4), vetoed={0, 2}, by=by, as_keyword=as_keyword)

    _assert_bit_equal(ours, _trained_by_closure(ALL[name], [1, 3]))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("by", ["host", "device"])
def test_lbfgs_keeps_its_place_and_its_memory_and_counts_one_evaluation(by, line_search):
    def make(parameters):
        return torch.optim.LBFGS(parameters, max_iter=3, line_search_fn=line_search)

    ours, theirs = _trained_by_closure(make, range(4), vetoed={0, 2}, by=by), _trained_by_closure(make, [1, 3])

    for parameters, optimizer in (ours, theirs):
        optimizer.state[parameters[0]]["func_evals"] -= 2 if optimizer is ours[1] else 0
        for name in ("old_dirs", "old_stps", "ro", "al"):
            of_lists = [value for value in optimizer.state[parameters[0]].pop(name) if value is not None]
            optimizer.state[parameters[0]][name] = torch.cat([value.flatten() for value in of_lists])
    _assert_bit_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch of itself, while compiling
@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("fused adamw", "device"),
        pytest.param("fused adamw", "host", marks=pytest.mark.long),
        pytest.param("fused sgd momentum", "device", marks=pytest.mark.long),
        pytest.param("adamw foreach", "device", marks=pytest.mark.long),
        pytest.param("adamw foreach", "host", marks=pytest.mark.long),
    ],
)
def test_a_compiled_step_is_vetoed_like_any_other(name, by):
    # Given
    torch.compiler.reset()
    parameters = _parameters()
    optimizer = ALL[name](parameters)
    veto = StepVeto(optimizer)
    compiled = torch.compile(optimizer.step, backend="eager")

    # When
    for step in range(NUM_STEPS):
        _give(parameters, _gradients_of(step, value=math.nan if step in {0, 3} else None))
        veto.drop_next((DROPS if step in {0, 3} else KEEPS)[by])
        compiled()

    # Then: to rounding, for tracing reorders what a foreach optimizer computes
    theirs, _ = _trained(ALL[name], [1, 2, 4])
    for one, other in zip(parameters, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


# With a gradient scaler.


def _scaled_training(make, *, vetoed=(), overflows=(), by="device", unscale=True, left_out=()):
    """Trains through a scaler on the CPU; gives parameters, optimizer, and the scale before every step and at last."""
    parameters = _parameters()
    optimizer, scaler = make(parameters), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    veto = StepVeto(optimizer)
    scales, fell = [], []
    for step in range(NUM_STEPS):
        if step in left_out:
            continue
        value = math.inf if step in overflows else 0.0 if step in vetoed else None
        weights = _gradients_of(step, value=value)
        loss = sum((p * g).sum() for p, g in zip(parameters, weights, strict=True) if g is not None)
        scaler.scale(loss).backward()
        before = loss_scale(scaler, device="cpu")
        if unscale:
            scaler.unscale_(optimizer)
        veto.drop_next((DROPS if step in vetoed else KEEPS)[by])
        scaler.step(optimizer)
        scaler.update()
        scales.append(before.item())
        fell.append((loss_scale(scaler, device="cpu") < before).item())
        optimizer.zero_grad()
        assert not hasattr(optimizer, "found_inf")
        assert not hasattr(optimizer, "grad_scale")
    return parameters, optimizer, [*scales, scaler.get_scale()], fell


SCALED = [FUSED["adamw"], FUSED["sgd momentum"], FUSED["sgd dampening"], OTHERS["adamw foreach"]]
SCALED_NAMES = ["fused adamw", "fused sgd momentum", "fused sgd dampening", "foreach adamw"]


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("make", SCALED, ids=SCALED_NAMES)
def test_a_scaler_counts_a_vetoed_window_as_one_that_did_not_overflow(make, by, unscale):
    # When
    *ours, scales, fell = _scaled_training(make, vetoed={0, 2}, by=by, unscale=unscale)

    # Then: it grows after the fourth, and nothing moved in the two
    assert scales == [1024.0] * 4 + [2048.0] * 2
    assert not any(fell)
    _assert_bit_equal(ours, _scaled_training(make, left_out={0, 2})[:2])


@pytest.mark.parametrize("is_vetoed", [True, False], ids=["vetoed, too", "not vetoed"])
@pytest.mark.parametrize("overflow", [0, 1])
@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("make", SCALED, ids=SCALED_NAMES)
def test_an_overflow_halves_the_scale_and_takes_no_step_whether_vetoed_or_not(make, by, overflow, is_vetoed):
    # When
    vetoed = {overflow} if is_vetoed else set()
    *ours, scales, fell = _scaled_training(make, vetoed=vetoed, overflows={overflow}, by=by)

    # Then: it grows again after four that went well
    assert scales == [*[1024.0] * (overflow + 1), *[512.0] * (4 - overflow), 512.0 if overflow else 1024.0]
    assert fell == [step == overflow for step in range(NUM_STEPS)]
    _assert_bit_equal(ours, _scaled_training(make, left_out={overflow})[:2])


def test_what_another_hand_has_put_on_the_optimizer_is_still_there_afterwards():
    # Given
    parameters = _parameters()
    optimizer = FUSED["adamw"](parameters)
    theirs = optimizer.found_inf = torch.zeros(())
    veto = StepVeto(optimizer)
    _give(parameters, _gradients_of(0, value=math.nan))

    # When
    veto.drop_next(TENSOR_DROP)
    optimizer.step()

    # Then
    assert optimizer.found_inf is theirs
    assert not hasattr(optimizer, "grad_scale")
    assert theirs.item() == 0.0  # a tensor of theirs is not written into
    for parameter, before in zip(parameters, _parameters(), strict=True):
        assert torch.equal(parameter, before)


# What is not an optimizer by itself.


@pytest.mark.parametrize("by", ["host", "device"])
@pytest.mark.parametrize("make", [FUSED["adamw"], OTHERS["adamw foreach"]], ids=["fused", "foreach"])
def test_the_optimizer_inside_accelerates_wrapper_is_the_one_that_is_hooked(make, by):
    # Given
    accelerate = pytest.importorskip("accelerate")
    parameters = _parameters()
    optimizer = make(parameters)
    wrapped = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert wrapped is not optimizer
    veto = StepVeto(wrapped)

    # When
    for step in range(3):
        _give(parameters, _gradients_of(step, value=math.nan if step == 1 else None))
        veto.drop_next((DROPS if step == 1 else KEEPS)[by])
        wrapped.step()

    # Then
    _assert_bit_equal((parameters, optimizer), _trained(make, [0, 2]))


def test_something_without_step_hooks_is_refused_by_name():
    class Homemade:
        def step(self):
            raise AssertionError("never called")

    with pytest.raises(UsageError, match=r"found Homemade: none of its steps could be dropped. Pass the torch.optim"):
        StepVeto(Homemade())
