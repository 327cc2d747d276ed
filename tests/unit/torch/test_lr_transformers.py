"""`rebase_lr` on every kind of `transformers.get_scheduler`, and inside Accelerate's wrapper."""

import copy
import warnings

import pytest
import torch
from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from transformers import SchedulerType, get_scheduler

from trimtab.errors import UsageError
from trimtab.torch.lr import rebase_lr, was_rebased

OLD, NEW = 5e-4, 3e-4
SETTINGS = {
    "constant": {},
    "reduce_lr_on_plateau": {},
    "greedy": {},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"lr_end": 2e-5, "power": 1.5},
    "cosine_with_min_lr": {"min_lr": 2e-5},
    "cosine_warmup_with_min_lr": {"min_lr": 2e-5, "warmup_lr_rate": 0.05},
    "warmup_stable_decay": {"num_decay_steps": 40, "min_lr_ratio": 0.1},
}
BY_METRIC = ("greedy", "reduce_lr_on_plateau")
NAMES = sorted(kind.value for kind in SchedulerType if kind.value not in BY_METRIC)
FLOORED = ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "polynomial")


@pytest.fixture(autouse=True)
def _quiet_schedulers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def build(name, lr, **settings):
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "lr": lr / 10}], lr=lr)
    made = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=20,
        num_training_steps=100,
        scheduler_specific_kwargs={**SETTINGS.get(name, {}), **settings},
    )
    return optimizer, made


def advance(optimizer, scheduler, num_steps):
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def resumed(name, *, at, **settings):
    saved = build(name, OLD, **settings)
    advance(*saved, at)
    found = build(name, NEW, **settings)
    for part, other in zip(found, saved, strict=True):
        part.load_state_dict(copy.deepcopy(other.state_dict()))
    return found


def numbers(parts):
    """Every number of the states of an optimizer and its scheduler, in order, and what else is in them."""

    def flat(value):
        if isinstance(value, dict):
            return [number for key in sorted(value, key=str) for number in flat(value[key])]
        if isinstance(value, list | tuple):
            return [number for one in value for number in flat(one)]
        return [value]

    found = flat([part.state_dict() for part in parts])
    return [one for one in found if isinstance(one, int | float)], [
        one for one in found if not isinstance(one, int | float)
    ]


@pytest.mark.parametrize("at", [0, 7, 20, 59, 99, 101])
@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_goes_on_as_if_built_at_the_new_rate(name, at):
    # given
    found, wanted = resumed(name, at=at), build(name, NEW)
    advance(*wanted, at)
    # when
    rebase_lr(*found, NEW)
    # then
    for _ in range(60):
        (now, others), (then, others_then) = numbers(found), numbers(wanted)
        assert now == pytest.approx(then, rel=1e-12, abs=1e-20)
        assert others == others_then
        advance(*found, 1)
        advance(*wanted, 1)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FLOORED)))
def test_a_schedule_without_a_floor_is_moved_in_the_same_process_too(name):
    found, wanted = build(name, OLD), build(name, NEW)
    advance(*found, 50)
    advance(*wanted, 50)
    rebase_lr(*found, NEW)
    assert rates(found[0]) == pytest.approx(rates(wanted[0]), rel=1e-12)


@pytest.mark.parametrize(("name", "setting"), [*((name, None) for name in FLOORED), ("cosine_with_min_lr", "rate")])
def test_a_floor_that_was_built_for_the_old_rate_is_refused_by_name(name, setting):
    # given
    settings = {"min_lr": None, "min_lr_rate": 0.1} if setting else {}
    found = build(name, OLD, **settings)
    advance(*found, 50)
    before = rates(found[0])
    # when
    with pytest.raises(UsageError, match=r"^LambdaLR keeps .* holds a floor \((lr_init|min_lr_rate)=") as caught:
        rebase_lr(*found, NEW)
    # then
    assert rates(found[0]) == before
    assert "build the optimizer and the scheduler at the new rate, load their states, then ask for it" in str(
        caught.value
    )


def test_a_floor_that_is_a_part_of_the_rate_goes_with_it():
    found = resumed("cosine_with_min_lr", at=80, min_lr=None, min_lr_rate=0.1)
    wanted = build("cosine_with_min_lr", NEW, min_lr=None, min_lr_rate=0.1)
    advance(*wanted, 80)
    rebase_lr(*found, NEW)
    assert rates(found[0]) == pytest.approx(rates(wanted[0]), rel=1e-12)


def test_a_plateau_of_a_trainer_says_what_it_needs():
    found = build("reduce_lr_on_plateau", OLD)
    for _ in range(30):
        found[1].step(1.0)
    with pytest.raises(UsageError, match=r"^ReduceLROnPlateau keeps .*group\['initial_lr'\]"):
        rebase_lr(*found, NEW)


def test_a_greedy_schedule_that_may_have_moved_is_refused_by_name():
    found = build("greedy", OLD)
    for _ in range(30):
        found[1].step(1.0)
    with pytest.raises(UsageError, match=r"^GreedyLR keeps .* between bounds \(min_lr=\[0.001, 0.001\]"):
        rebase_lr(*found, NEW)


def test_a_greedy_schedule_that_cannot_have_moved_is_built_afresh():
    # given
    found, wanted = build("greedy", OLD, min_lr=1e-6), build("greedy", NEW, min_lr=1e-6)
    for _, schedule in (found, wanted):
        for _ in range(5):
            schedule.step(1.0)
    # when
    rebase_lr(*found, NEW)
    # then
    for _ in range(60):
        assert rates(found[0]) == pytest.approx(rates(wanted[0]), rel=1e-12)
        assert found[1]._init_lrs == pytest.approx(wanted[1]._init_lrs, rel=1e-12)
        for _, schedule in (found, wanted):
            schedule.step(1.0)


def test_a_layerwise_dummy_is_refused_by_name():
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer, LayerWiseDummyScheduler

    weight = torch.nn.Parameter(torch.ones(2))
    inner = {weight: torch.optim.AdamW([weight], lr=OLD)}
    scheduler = LayerWiseDummyScheduler(optimizer_dict=inner, lr=OLD)
    with pytest.raises(UsageError, match=r"^LayerWiseDummyScheduler keeps its learning rate"):
        rebase_lr(scheduler.optimizer, scheduler, NEW)
    assert isinstance(scheduler.optimizer, LayerWiseDummyOptimizer)


@pytest.mark.parametrize("wrapped_optimizer", [False, True])
def test_a_schedule_inside_the_wrapper_of_accelerate_is_moved(wrapped_optimizer):
    # given
    accelerator = Accelerator(cpu=True)
    (plain, schedule), wanted = build("cosine", OLD), build("cosine", NEW)
    optimizer = accelerator.prepare_optimizer(plain)
    wrapper = accelerator.prepare_scheduler(schedule)
    assert isinstance(wrapper, AcceleratedScheduler)
    advance(optimizer, wrapper, 30)
    advance(*wanted, 30)
    # when
    rebase_lr(optimizer if wrapped_optimizer else plain, wrapper, NEW)
    # then
    for _ in range(60):
        assert rates(plain) == pytest.approx(rates(wanted[0]), rel=1e-12, abs=1e-20)
        advance(optimizer, wrapper, 1)
        advance(*wanted, 1)


def test_an_optimizer_in_a_wrapper_and_the_one_inside_are_known_to_be_at_another_rate():
    inside, _ = build("cosine", OLD)
    wrapper = Accelerator(cpu=True).prepare_optimizer(inside)
    assert not was_rebased(wrapper)
    rebase_lr(inside, None, NEW)
    assert was_rebased(wrapper)
    wrapper.load_state_dict(inside.state_dict())
    assert not was_rebased(inside)
    rebase_lr(wrapper, None, NEW)  # as it is
    assert not was_rebased(inside)
    rebase_lr(wrapper, None, OLD)
    assert was_rebased(inside)
