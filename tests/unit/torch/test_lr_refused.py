"""`rebase_lr` where the new rate cannot be known: refused by name, with what to do, and nothing changed."""

import copy
import re
import warnings
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler as kinds
from torch.optim.swa_utils import SWALR

from trimtab.errors import UsageError
from trimtab.torch.lr import rebase_lr

OLD, NEW = 5e-4, 3e-4


@pytest.fixture(autouse=True)
def _quiet_schedulers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def adamw(lr=OLD, *, num_groups=2):
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(num_groups)], lr=lr)


def advance(optimizer, scheduler, num_steps):
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()


def refusal(optimizer, scheduler, lr=NEW):
    """What `rebase_lr` says; that nothing changed is checked here."""
    before = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    with pytest.raises(UsageError, match="nothing was changed") as caught:
        rebase_lr(optimizer, scheduler, lr)
    assert [optimizer.state_dict(), scheduler.state_dict()] == before
    return str(caught.value)


class _Halved(kinds.LRScheduler):
    def get_lr(self):
        return [max(group["lr"] * 0.5, 1e-5) for group in self.optimizer.param_groups]


class _LevelledCosine(kinds.CosineAnnealingLR):
    def get_lr(self):
        return [max(rate, 1e-4) for rate in super().get_lr()]


class _RenamedCosine(kinds.CosineAnnealingLR):
    """A subclass that changes nothing of how rates are made."""

    def describe(self):
        return "cosine"


class _NoScheduler:
    def step(self):
        pass

    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    "make", [lambda o: _Halved(o), lambda o: _LevelledCosine(o, 50), lambda o: _NoScheduler()], ids=["own", "sub", "no"]
)
def test_a_kind_that_is_not_known_is_refused_by_its_name(make):
    optimizer = adamw()
    scheduler = make(optimizer)
    said = refusal(optimizer, scheduler)
    assert said.startswith(f"{type(scheduler).__name__} keeps its learning rate")
    assert "of no kind that is known here" in said
    assert "Build it at the new rate and step it to its place" in said


def test_one_kind_that_is_not_known_refuses_the_whole_sequence():
    optimizer = adamw()
    warmup = kinds.LinearLR(optimizer, 0.1, 1.0, 5)
    scheduler = kinds.SequentialLR(optimizer, [warmup, _Halved(optimizer)], [5])
    assert refusal(optimizer, scheduler).startswith("_Halved keeps")


def test_a_subclass_that_makes_its_rates_as_its_parent_does_is_known():
    # given
    found, wanted = adamw(OLD), adamw(NEW)
    schedulers = [_RenamedCosine(optimizer, 50, eta_min=1e-5) for optimizer in (found, wanted)]
    for optimizer, scheduler in zip((found, wanted), schedulers, strict=True):
        advance(optimizer, scheduler, 20)
    # when
    rebase_lr(found, schedulers[0], NEW)
    # then
    assert found.param_groups[0]["lr"] == pytest.approx(wanted.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize(
    ("floored", "named"),
    [
        (lambda o: kinds.CosineAnnealingLR(o, 50, eta_min=1e-5), "CosineAnnealingLR .*eta_min=1e-05"),
        (lambda o: kinds.CosineAnnealingWarmRestarts(o, 50, eta_min=1e-5), "CosineAnnealingWarmRestarts .*eta_min"),
        (lambda o: SWALR(o, 1e-5, 50), "SWALR .*swa_lr"),
    ],
)
def test_a_floor_in_a_chain_is_refused_by_its_name(floored, named):
    # given
    optimizer = adamw()
    scheduler = kinds.ChainedScheduler([kinds.ExponentialLR(optimizer, 0.99), floored(optimizer)])
    advance(optimizer, scheduler, 10)
    # when
    said = refusal(optimizer, scheduler)
    # then
    assert re.match(named, said)
    assert "chained with others" in said


def test_a_floor_that_another_schedule_went_on_from_is_refused_by_its_name():
    # given
    optimizer = adamw()
    cosine = kinds.CosineAnnealingLR(optimizer, 10, eta_min=1e-5)
    scheduler = kinds.SequentialLR(optimizer, [cosine, kinds.MultiplicativeLR(optimizer, lambda t: 0.9)], [8])
    # when: while the cosine rules, all is known
    advance(optimizer, scheduler, 5)
    rebase_lr(optimizer, scheduler, 4e-4)
    # then: behind it not any more
    advance(optimizer, scheduler, 5)
    said = refusal(optimizer, scheduler)
    assert said.startswith("CosineAnnealingLR keeps")
    assert "comes before a MultiplicativeLR, which goes on from it" in said


def test_a_cosine_with_a_floor_that_began_at_another_rate_than_its_own_is_refused():
    optimizer = adamw()
    cosine = kinds.CosineAnnealingLR(optimizer, 22, eta_min=1e-5)
    scheduler = kinds.SequentialLR(optimizer, [cosine, kinds.OneCycleLR(optimizer, OLD, total_steps=90)], [30])
    advance(optimizer, scheduler, 9)
    assert "the groups begin at" in refusal(optimizer, scheduler)


def test_a_level_cosine_that_a_sequence_of_sequences_began_again_is_refused():
    optimizer = adamw()
    chain = kinds.ChainedScheduler([kinds.CosineAnnealingLR(optimizer, 32, eta_min=OLD)])
    inner = kinds.SequentialLR(optimizer, [chain], [])
    scheduler = kinds.SequentialLR(optimizer, [inner, kinds.ExponentialLR(optimizer, 0.9)], [50])
    advance(optimizer, scheduler, 23)
    assert "was built at its floor (eta_min=0.0005), and what its rates show" in refusal(optimizer, scheduler)


# A plateau's schedule.


def plateau(lr=OLD, *, base=True, **settings):
    optimizer = adamw(lr)
    if base:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizer, kinds.ReduceLROnPlateau(optimizer, **{"factor": 0.5, "patience": 1, **settings})


def stall(scheduler, num_epochs):
    for _ in range(num_epochs):
        scheduler.step(1.0)


@pytest.mark.parametrize("num_epochs", range(0, 24, 3))
@pytest.mark.parametrize("lr", [NEW, 9e-4])
def test_a_plateau_is_reduced_as_often_at_the_new_rate(num_epochs, lr):
    # given
    (found, schedule), (wanted, other) = plateau(OLD), plateau(lr)
    stall(schedule, num_epochs)
    stall(other, num_epochs)
    # when
    rebase_lr(found, schedule, lr)
    # then
    for _ in range(20):
        rates = [group["lr"] for group in wanted.param_groups]
        assert [group["lr"] for group in found.param_groups] == pytest.approx(rates, rel=1e-12)
        assert schedule._last_lr == pytest.approx(other._last_lr, rel=1e-12)
        stall(schedule, 1)
        stall(other, 1)


@pytest.mark.parametrize("num_epochs", [2, 4, 6, 30])
def test_a_plateau_leaves_reductions_out_that_are_too_small_at_the_new_rate(num_epochs):
    # given: 5e-4 is halved twice, 3e-4 once
    (found, schedule), (wanted, other) = plateau(OLD, eps=1e-4), plateau(NEW, eps=1e-4)
    stall(schedule, num_epochs)
    stall(other, num_epochs)
    # when
    rebase_lr(found, schedule, NEW)
    # then
    assert found.param_groups[0]["lr"] == pytest.approx(wanted.param_groups[0]["lr"], rel=1e-12)


def test_a_plateau_above_its_floor_may_end_at_it_at_the_new_rate():
    # given: 5e-4 halved twice is above 1e-4, 3e-4 halved twice is not
    (found, schedule), (wanted, other) = plateau(OLD, min_lr=1e-4), plateau(NEW, min_lr=1e-4)
    stall(schedule, 6)
    stall(other, 6)
    assert found.param_groups[0]["lr"] == pytest.approx(1.25e-4)
    # when
    rebase_lr(found, schedule, NEW)
    # then
    assert found.param_groups[0]["lr"] == wanted.param_groups[0]["lr"] == 1e-4


def test_a_plateau_at_its_floor_stays_there_at_a_lower_rate():
    found, schedule = plateau(OLD, min_lr=1e-4)
    stall(schedule, 40)
    rebase_lr(found, schedule, NEW)
    assert [group["lr"] for group in found.param_groups] == [1e-4, 1e-4]


def test_a_plateau_at_its_floor_does_not_tell_what_it_would_be_above_it():
    found, schedule = plateau(OLD, min_lr=1e-4)
    stall(schedule, 9)
    said = refusal(found, schedule, 9e-1)
    assert said.startswith("ReduceLROnPlateau keeps its learning rate")
    assert "stands at its floor (min_lr=[0.0001, 0.0001]" in said
    assert "Build it at the new rate, and leave its saved state out" in said


def test_a_plateau_that_may_have_reduced_tells_nothing_of_the_rate_it_began_at():
    found, schedule = plateau(base=False)
    stall(schedule, 9)
    said = refusal(found, schedule)
    assert "keeps no rate that it began at. Put that into every group of the optimizer as group['initial_lr']" in said


def test_a_plateau_that_cannot_have_reduced_is_at_the_rate_it_began_at():
    found, schedule = plateau(base=False, patience=9)
    stall(schedule, 9)
    rebase_lr(found, schedule, NEW)
    assert [group["lr"] for group in found.param_groups] == pytest.approx([NEW, NEW], rel=1e-12)


def test_a_plateau_whose_rate_somebody_else_has_set_is_refused():
    found, schedule = plateau()
    stall(schedule, 4)
    found.param_groups[1]["lr"] = 4e-4
    assert "where its reductions do not lead: something else has set the rate" in refusal(found, schedule)


# Factors that hold a rate.


def _with_end(step, *, lr_init, lr_end):
    return max(lr_end, lr_init * (1 - step / 100)) / lr_init


def _closure(lr_init, lr_end):
    return lambda step: max(lr_end, lr_init * (1 - step / 100)) / lr_init


@pytest.mark.parametrize(
    "made",
    [lambda lr: partial(_with_end, lr_init=lr, lr_end=1e-5), lambda lr: _closure(lr, 1e-5)],
    ids=["partial", "closure"],
)
def test_a_factor_that_holds_the_rate_it_was_built_at_must_have_been_built_at_the_new_one(made):
    # given
    saved = adamw(OLD)
    schedule = kinds.LambdaLR(saved, made(OLD))
    advance(saved, schedule, 90)
    # then: in the same process the factor is that of the old rate
    said = refusal(saved, schedule)
    assert said.startswith("LambdaLR keeps its learning rate")
    assert (
        "holds a floor (lr_init=0.0005, lr_end=1e-05) made for a learning rate of 0.0005: build the optimizer" in said
    )
    # when: one that was built at the new rate, with the saved states
    found, wanted = adamw(NEW), adamw(NEW)
    resumed, fresh = kinds.LambdaLR(found, made(NEW)), kinds.LambdaLR(wanted, made(NEW))
    found.load_state_dict(saved.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    rebase_lr(found, resumed, NEW)
    # then
    advance(wanted, fresh, 90)
    assert found.param_groups[0]["lr"] == pytest.approx(wanted.param_groups[0]["lr"], rel=1e-12)


def test_a_factor_that_holds_the_rate_but_ends_at_zero_goes_with_it():
    found = adamw(OLD)
    schedule = kinds.LambdaLR(found, partial(_with_end, lr_init=OLD, lr_end=0))
    rebase_lr(found, schedule, NEW)
    assert found.param_groups[0]["lr"] == NEW


def test_a_factor_with_a_floor_in_a_chain_is_refused_though_it_was_built_at_the_new_rate():
    found = adamw(NEW)
    factor = kinds.LambdaLR(found, partial(_with_end, lr_init=NEW, lr_end=1e-5))
    schedule = kinds.ChainedScheduler([factor, kinds.ConstantLR(found, 0.5, 9)])
    for group in found.param_groups:
        group["initial_lr"] = OLD
    assert refusal(found, schedule).startswith("LambdaLR keeps its learning rate")


# Groups that were added later, and what is no number.


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda o: kinds.LambdaLR(o, lambda t: 0.9**t), "LambdaLR"),
        (lambda o: kinds.MultiplicativeLR(o, lambda t: 0.9), "MultiplicativeLR"),
        (lambda o: kinds.StepLR(o, 5), "StepLR"),
        (lambda o: kinds.CosineAnnealingLR(o, 50, eta_min=1e-5), "CosineAnnealingLR"),
        (lambda o: kinds.CyclicLR(o, 1e-5, OLD, cycle_momentum=False), "CyclicLR"),
        (lambda o: kinds.OneCycleLR(o, OLD, total_steps=50), "OneCycleLR"),
        (lambda o: kinds.ReduceLROnPlateau(o), "ReduceLROnPlateau"),
        (lambda o: SWALR(o, 1e-5, 30), "SWALR"),
        (lambda o: kinds.ChainedScheduler([kinds.ExponentialLR(o, 0.9)]), "ChainedScheduler"),
        (
            lambda o: kinds.SequentialLR(o, [kinds.LinearLR(o, 0.1, 1.0, 5), kinds.ExponentialLR(o, 0.9)], [5]),
            "SequentialLR",
        ),
    ],
)
def test_a_group_that_was_added_after_the_scheduler_is_refused_by_name(make, name):
    # given
    optimizer = adamw(num_groups=1)
    scheduler = make(optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-4})
    # when
    said = refusal(optimizer, scheduler)
    # then
    assert said.startswith(f"{name} keeps its learning rate")
    assert "it was built for 1 parameter group (" in said
    assert "and the optimizer has 2. Add the groups before the scheduler is built" in said


@pytest.mark.parametrize("lr", [10**400, -(10**400), 10**9000], ids=["large", "less", "long"])
def test_a_whole_number_beyond_all_floats_is_no_rate(lr):
    optimizer = adamw()
    with pytest.raises(UsageError, match=r"^lr=a number beyond all floats \(int\) is no learning rate"):
        rebase_lr(optimizer, kinds.ExponentialLR(optimizer, 0.9), lr)


def test_a_cycle_whose_groups_have_lost_its_highest_rate_is_refused():
    optimizer = adamw()
    scheduler = kinds.OneCycleLR(optimizer, OLD, total_steps=50)
    del optimizer.param_groups[0]["max_lr"]
    assert "was built at a learning rate of nan" in refusal(optimizer, scheduler)
