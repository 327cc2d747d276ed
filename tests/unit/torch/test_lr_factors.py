"""Factors that may have been made of the old rate: the oracle is the schedule built afresh, or it is refused."""

import copy
import math
import types
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as kinds

from trimtab.errors import UsageError
from trimtab.torch.lr import rebase_lr

OLD, NEW, FLOOR = 5e-4, 3e-4, 1e-4
NUM_STEPS = 100


@pytest.fixture(autouse=True)
def _quiet_schedulers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def cosine(step):
    return 0.5 * (1 + math.cos(math.pi * min(step, NUM_STEPS) / NUM_STEPS))


class _Rates:
    """An object that is called, and its ways to hold a floor."""

    def __init__(self, base):
        self.base, self.minlr = base, FLOOR

    def __call__(self, step):
        return max(self.minlr / self.base, cosine(step))

    def method(self, step):
        return self._share() + 0 * step if cosine(step) < self._share() else cosine(step)

    def _share(self):
        return self.minlr / self.base


class _Share:
    def __init__(self, base):
        self.least = FLOOR / base

    def __call__(self, step):
        return max(self.least, cosine(step))


class _Nested:
    def __init__(self, base):
        self.inner = _Rates(base)

    def __call__(self, step):
        return self.inner(step)


class _Decay:
    def __init__(self, num_steps):
        self.num_steps = num_steps

    def __call__(self, step):
        return 0.99 ** min(step, self.num_steps)


class _Slotted:
    __slots__ = ("base", "minlr")

    def __init__(self, base):
        self.base, self.minlr = base, FLOOR


def of_closure(base):
    return lambda step: max(FLOOR / base, cosine(step))


def of_settings(base):
    settings = types.SimpleNamespace(lr=base, minlr=FLOOR, weight_decay=0.1)
    return lambda step: max(settings.minlr / settings.lr, cosine(step))


def of_slots(base):
    settings = _Slotted(base)
    return lambda step: max(settings.minlr / settings.base, cosine(step))


def of_dict(base):
    settings = {"base": [base]}
    return lambda step: max(FLOOR / settings["base"][0], cosine(step))


def of_default(base):
    return lambda step, rate=base: max(FLOOR / rate, cosine(step))


def of_function_in_function(base):
    inner = of_closure(base)
    return lambda step: inner(step)


def of_array(base):
    rates = np.array([base, FLOOR])
    return lambda step: max(float(rates[1] / rates[0]), cosine(step))


def of_tensor(base):
    rate = torch.tensor(base, dtype=torch.float64)
    return lambda step: max(FLOOR / float(rate), cosine(step))


def of_inverse(base):
    share = 1 / base
    return lambda step: max(FLOOR * share, cosine(step))


def floored(step, minlr, rate):
    return max(minlr / rate, cosine(step))


def of_partial(base):
    return partial(floored, minlr=FLOOR, rate=base)


def of_object_in_a_partial(base):
    return partial(_Rates.__call__, _Rates(base))


def of_bound_method(base):
    return _Rates(base).method


FUNCTIONS = [
    of_closure,
    of_settings,
    of_slots,
    of_dict,
    of_default,
    of_function_in_function,
    of_array,
    of_tensor,
    of_partial,
    of_object_in_a_partial,
    of_bound_method,
]
"""Of these no state puts anything back."""

OBJECTS = [_Rates, _Share, _Nested]


def build(make, lr, *, kind=kinds.LambdaLR):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=lr)
    return optimizer, kind(optimizer, make(lr))


def advance(optimizer, scheduler, num_steps):
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()


def resumed(make, *, at, **settings):
    saved, found = build(make, OLD, **settings), build(make, NEW, **settings)
    advance(*saved, at)
    for part, other in zip(found, saved, strict=True):
        part.load_state_dict(copy.deepcopy(other.state_dict()))
    return found


def refusal(optimizer, scheduler):
    before = copy.deepcopy(optimizer.state_dict())
    rates = list(scheduler._last_lr), list(scheduler.base_lrs)
    with pytest.raises(UsageError, match="nothing was changed") as caught:
        rebase_lr(optimizer, scheduler, NEW)
    assert optimizer.state_dict() == before
    assert (scheduler._last_lr, scheduler.base_lrs) == rates
    return str(caught.value)


@pytest.mark.parametrize("at", [0, 20, 95])
@pytest.mark.parametrize("make", FUNCTIONS)
def test_a_function_that_was_built_at_the_new_rate_goes_on_as_if_built_afresh(make, at):
    # given
    found, wanted = resumed(make, at=at), build(make, NEW)
    advance(*wanted, at)
    # when
    rebase_lr(*found, NEW)
    # then
    for _ in range(80):
        assert found[0].param_groups[0]["lr"] == pytest.approx(wanted[0].param_groups[0]["lr"], rel=1e-12, abs=1e-20)
        advance(*found, 1)
        advance(*wanted, 1)


@pytest.mark.parametrize("make", FUNCTIONS)
def test_a_function_that_was_built_at_the_old_rate_is_refused_with_what_it_holds(make):
    found = build(make, OLD)
    advance(*found, 20)
    said = refusal(*found)
    assert said.startswith("LambdaLR keeps its learning rate")
    assert "=0.0005" in said
    assert "build the optimizer and the scheduler at the new rate, load their states" in said


@pytest.mark.parametrize("at", [0, 20, 95])
@pytest.mark.parametrize("make", OBJECTS)
def test_an_object_whose_state_put_the_old_numbers_back_is_refused_with_what_it_holds(make, at):
    said = refusal(*resumed(make, at=at))
    assert said.startswith("LambdaLR keeps its learning rate")
    assert "Make the factor a function, which no state changes, and build it at the new rate" in said
    assert any(held in said for held in ("base=0.0005", "least=0.2"))


def test_an_object_that_holds_whole_numbers_alone_goes_with_the_rate():
    found = resumed(lambda lr: _Decay(30), at=20)
    rebase_lr(*found, NEW)
    assert found[0].param_groups[0]["lr"] == pytest.approx(NEW * 0.99**20, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "old", "new"),
    [
        (lambda lr, gamma=0.1: lambda step: gamma ** (step // 30), 0.1, 0.05),
        (lambda lr, warmup=0.1 * 10_000: lambda step: min(1, (step + 1) / warmup), 1e-3, 5e-4),
    ],
    ids=["a decay that is the old rate", "a warm-up as long as 1 over it"],
)
def test_a_number_that_is_the_old_rate_by_chance_is_no_floor_where_the_rate_is_new(make, old, new):
    # given
    (saved, found, wanted) = (build(make, lr) for lr in (old, new, new))
    advance(*saved, 40)
    advance(*wanted, 40)
    for part, other in zip(found, saved, strict=True):
        part.load_state_dict(copy.deepcopy(other.state_dict()))
    # when
    rebase_lr(*found, new)
    # then
    assert found[0].param_groups[0]["lr"] == pytest.approx(wanted[0].param_groups[0]["lr"], rel=1e-12)


class _Trainer:
    """Settings, and a factor that reads them two methods away."""

    def __init__(self, lr):
        self.cfg = types.SimpleNamespace(lr=lr, floor=FLOOR)

    def factor(self, step):
        return self._cosine(step)

    def _cosine(self, step):
        return max(self.cfg.floor / self.cfg.lr, cosine(step))


@pytest.mark.parametrize("make", [lambda lr: _Trainer(OLD).factor, lambda lr: _Trainer(OLD)._cosine])
def test_what_a_method_reads_through_another_one_is_looked_at(make):
    assert "cfg.lr=0.0005" in refusal(*resumed(make, at=95))


RATE = OLD


def test_a_global_that_a_factor_reads_is_looked_at():
    found = build(lambda lr: lambda step: max(FLOOR / RATE, cosine(step)), OLD)
    assert "RATE=0.0005" in refusal(*found)


def test_a_factor_that_reads_the_optimizer_is_refused():
    # given
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=OLD)
    factor = kinds.LambdaLR(optimizer, lambda step: max(FLOOR / optimizer.param_groups[0]["initial_lr"], cosine(step)))
    # then
    assert "has a factor that reads an object of AdamW" in refusal(optimizer, factor)


def test_a_rate_that_stands_in_a_bound_attribute_nobody_reads_is_no_reason():
    settings = types.SimpleNamespace(lr=OLD, num_steps=20)
    found = build(lambda lr: lambda step: 1 - step / settings.num_steps, OLD)
    advance(*found, 5)
    rebase_lr(*found, NEW)
    assert found[0].param_groups[0]["lr"] == pytest.approx(NEW * 0.75, rel=1e-12)


def test_a_part_of_the_rate_that_a_function_holds_goes_with_it():
    gamma = 0.9
    found = build(lambda lr: lambda step: gamma**step, OLD)
    advance(*found, 5)
    rebase_lr(*found, NEW)
    assert found[0].param_groups[0]["lr"] == pytest.approx(NEW * 0.9**5, rel=1e-12)


@pytest.mark.parametrize("make", [*FUNCTIONS, *OBJECTS, of_inverse])
def test_a_product_of_factors_that_hold_a_rate_is_refused_wherever_it_was_built(make):
    for found in (build(make, OLD, kind=kinds.MultiplicativeLR), resumed(make, at=20, kind=kinds.MultiplicativeLR)):
        said = refusal(*found)
        assert said.startswith("MultiplicativeLR keeps its learning rate")
        assert "what its factors were before cannot be told" in said


@pytest.mark.parametrize("make", [*FUNCTIONS, *OBJECTS])
def test_a_factor_that_holds_a_rate_is_refused_in_a_chain(make):
    # given
    def chained(optimizer, factor):
        return kinds.ChainedScheduler([kinds.LambdaLR(optimizer, factor), kinds.ConstantLR(optimizer, 0.5, 9)])

    found = resumed(make, at=20, kind=chained)
    # then
    rates = copy.deepcopy(found[0].param_groups)
    with pytest.raises(UsageError, match=r"^LambdaLR keeps its learning rate, and nothing was changed"):
        rebase_lr(*found, NEW)
    assert repr(found[0].param_groups) == repr(rates)
