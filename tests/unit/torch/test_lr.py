"""`rebase_lr`: the oracle is the same schedule, built afresh at the new rate and stepped to the same place."""

import copy
import logging
import math
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as kinds
from torch.optim.swa_utils import SWALR

from trimtab.errors import UsageError
from trimtab.torch.lr import asked_rates, kept_lr, kept_rates, lr_in_words, rebase_lr

OLD, NEW = 5e-4, 3e-4
EXACT = 1e-12
STEPS_ON = 60


@pytest.fixture(autouse=True)
def _quiet_schedulers():
    # A schedule is stepped here without an optimizer, and into its second cycle, which torch remarks on.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def adamw(lr, *, ratios=(1.0, 0.1), as_lr=lambda lr: lr, kind=torch.optim.AdamW, **settings):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": as_lr(lr * ratio)} for ratio in ratios]
    return kind(groups, lr=as_lr(lr), **settings)


def sgd(lr):
    return adamw(lr, kind=torch.optim.SGD, momentum=0.9)


def chained(optimizer):
    return kinds.ChainedScheduler([kinds.ConstantLR(optimizer, 0.5, 30), kinds.ExponentialLR(optimizer, 0.99)])


def sequence(optimizer, *, then=lambda optimizer: kinds.CosineAnnealingLR(optimizer, 180)):
    return kinds.SequentialLR(optimizer, [kinds.LinearLR(optimizer, 0.1, 1.0, 20), then(optimizer)], [20])


def sequence_in_a_sequence(optimizer):
    first = [kinds.LinearLR(optimizer, 0.5, 1.0, 8), kinds.StepLR(optimizer, 9, 0.7)]
    then = kinds.PolynomialLR(optimizer, 60)
    return kinds.SequentialLR(optimizer, [kinds.SequentialLR(optimizer, first, [8]), then], [40])


def begun_again(scheduler):
    """A sequence in a sequence: the rate goes back to its base for each, and the first schedule makes a step."""
    optimizer = scheduler.optimizer
    return kinds.SequentialLR(
        optimizer, [kinds.SequentialLR(optimizer, [scheduler], []), kinds.ExponentialLR(optimizer, 0.99)], [32]
    )


def cyclic(optimizer, lr, **settings):
    return kinds.CyclicLR(optimizer, lr / 10, [lr, lr / 4], step_size_up=13, step_size_down=7, **settings)


SCHEDULES = {
    "lambda": lambda o, lr: kinds.LambdaLR(o, lambda t: min(1, t / 20) * 0.5 * (1 + math.cos(math.pi * t / 200))),
    "lambda of each group": lambda o, lr: kinds.LambdaLR(o, [lambda t: 0.95**t, lambda t: 1 / (1 + t)]),
    "multiplicative": lambda o, lr: kinds.MultiplicativeLR(o, lambda t: 0.97),
    "step": lambda o, lr: kinds.StepLR(o, 30, 0.5),
    "multi-step": lambda o, lr: kinds.MultiStepLR(o, [20, 20, 70], 0.3),
    "constant": lambda o, lr: kinds.ConstantLR(o, 0.25, 20),
    "linear": lambda o, lr: kinds.LinearLR(o, 0.1, 1.0, 20),
    "linear down": lambda o, lr: kinds.LinearLR(o, 1.0, 0.1, 50),
    "exponential": lambda o, lr: kinds.ExponentialLR(o, 0.99),
    "polynomial": lambda o, lr: kinds.PolynomialLR(o, 57, 1.5),
    "cosine": lambda o, lr: kinds.CosineAnnealingLR(o, 57),
    "cosine with a floor": lambda o, lr: kinds.CosineAnnealingLR(o, 57, eta_min=2e-5),
    "cosine with a floor above a group": lambda o, lr: kinds.CosineAnnealingLR(o, 57, eta_min=1e-4),
    "cosine at its floor": lambda o, lr: kinds.CosineAnnealingLR(o, 57, eta_min=OLD),
    "restarts": lambda o, lr: kinds.CosineAnnealingWarmRestarts(o, 20),
    "restarts, longer each, with a floor": lambda o, lr: kinds.CosineAnnealingWarmRestarts(o, 19, 2, eta_min=1e-5),
    "restarts at their floor": lambda o, lr: kinds.CosineAnnealingWarmRestarts(o, 19, 2, eta_min=OLD),
    "triangular": lambda o, lr: cyclic(o, lr),
    "triangular2": lambda o, lr: cyclic(o, lr, mode="triangular2"),
    "exp_range": lambda o, lr: cyclic(o, lr, mode="exp_range", gamma=0.99),
    "cyclic of one's own": lambda o, lr: cyclic(o, lr, scale_fn=lambda x: 0.5 ** (x - 1), cycle_momentum=False),
    "one cycle": lambda o, lr: kinds.OneCycleLR(o, [lr, lr / 2], total_steps=140),
    "one cycle, linear": lambda o, lr: kinds.OneCycleLR(o, lr, total_steps=140, anneal_strategy="linear"),
    "one cycle of three phases": lambda o, lr: kinds.OneCycleLR(o, lr, total_steps=140, three_phase=True),
    "sequence": lambda o, lr: sequence(o),
    "sequence with a floor": lambda o, lr: sequence(o, then=lambda o: kinds.CosineAnnealingLR(o, 90, eta_min=2e-5)),
    "sequence into restarts": lambda o, lr: sequence(
        o, then=lambda o: kinds.CosineAnnealingWarmRestarts(o, 25, eta_min=2e-5)
    ),
    "sequence into a factor": lambda o, lr: sequence(o, then=lambda o: kinds.MultiplicativeLR(o, lambda t: 0.97)),
    "sequence into averaging": lambda o, lr: sequence(o, then=lambda o: SWALR(o, 1e-5, 30)),
    "chain": lambda o, lr: chained(o),
    "chain of one, with a floor": lambda o, lr: kinds.ChainedScheduler([kinds.CosineAnnealingLR(o, 57, eta_min=2e-5)]),
    "chain of a sequence": lambda o, lr: kinds.ChainedScheduler([sequence(o), kinds.ExponentialLR(o, 0.98)]),
    "sequence that begins with a sequence": lambda o, lr: sequence_in_a_sequence(o),
    "averaging": lambda o, lr: SWALR(o, [1e-5, 2e-5], 57),
    "averaging, linear": lambda o, lr: SWALR(o, 1e-3, 57, "linear"),
    "averaging at once": lambda o, lr: SWALR(o, 1e-5, 0),
}
PLACES = (0, 1, 5, 19, 20, 21, 56, 57, 58)


def build(name, lr, *, optimizer=adamw):
    made = optimizer(lr)
    return made, SCHEDULES[name](made, lr)


def advance(optimizer, scheduler, num_steps):
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()


def numbers_in(value, path=""):
    """Every number of a state, by where it stands."""
    if isinstance(value, dict):
        return {k: v for key, entry in value.items() for k, v in numbers_in(entry, f"{path}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, entry in enumerate(value) for k, v in numbers_in(entry, f"{path}.{key}").items()}
    if isinstance(value, int | float | torch.Tensor):
        return {path: float(value)}
    return {}


def assert_alike(found, wanted, *, within=EXACT):
    """Two optimizers with their schedulers: every number of both states."""
    for one, other in zip(found, wanted, strict=True):
        mine, theirs = numbers_in(one.state_dict()), numbers_in(other.state_dict())
        assert mine.keys() == theirs.keys()
        apart = {
            name: (mine[name], value)
            for name, value in theirs.items()
            if not math.isclose(mine[name], value, rel_tol=within, abs_tol=1e-19)
        }
        assert apart == {}


def resumed(make, *, at, advance=advance):
    """Built at the new rate, with the states of one that was built at the old rate and stepped `at` times."""
    saved = make(OLD)
    advance(*saved, at)
    states = copy.deepcopy([part.state_dict() for part in saved])
    found = make(NEW)
    for part, state in zip(found, states, strict=True):
        part.load_state_dict(state)
    return found


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_as_if_built_at_the_new_rate(name, at):
    # given
    def make(lr):
        return build(name, lr)

    found, wanted = resumed(make, at=at), make(NEW)
    advance(*wanted, at)
    # when
    rebase_lr(*found, NEW)
    # then
    for _ in range(STEPS_ON):
        assert_alike(found, wanted)
        advance(*found, 1)
        advance(*wanted, 1)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7, 14, 31, 32, 40])
@pytest.mark.parametrize("strategy", ["linear", "cos"])
@pytest.mark.parametrize("num_times", [1, 2, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 14])
def test_averaging_that_a_sequence_of_sequences_began_several_times_goes_on_as_if_built_afresh(
    num_steps, num_times, strategy, at
):
    # given
    def make(lr):
        optimizer = adamw(lr)
        scheduler = kinds.ChainedScheduler([SWALR(optimizer, 1e-4, num_steps, strategy)])
        for _ in range(num_times):
            scheduler = begun_again(scheduler)
        return optimizer, scheduler

    found, wanted = resumed(make, at=at), make(NEW)
    advance(*wanted, at)
    # when
    rebase_lr(*found, NEW)
    # then
    for _ in range(STEPS_ON):
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer, _ in (found, wanted)]
        assert rates[0] == pytest.approx(rates[1], rel=EXACT)
        assert found[1].get_last_lr() == pytest.approx(wanted[1].get_last_lr(), rel=EXACT)
        advance(*found, 1)
        advance(*wanted, 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_goes_on_in_the_same_process_is_moved_alike(name):
    # given
    found, wanted = build(name, OLD), build(name, NEW)
    advance(*found, 33)
    advance(*wanted, 33)
    # when
    rebase_lr(*found, NEW)
    # then
    assert_alike(found, wanted)
    advance(*found, STEPS_ON)
    advance(*wanted, STEPS_ON)
    assert_alike(found, wanted)


@pytest.mark.parametrize("name", ["triangular", "one cycle", "one cycle of three phases"])
def test_a_cycle_of_the_momentum_is_left_alone(name):
    # given
    found, wanted = build(name, OLD, optimizer=sgd), build(name, NEW, optimizer=sgd)
    advance(*found, 17)
    advance(*wanted, 17)
    before = [group["momentum"] for group in found[0].param_groups]
    # when
    rebase_lr(*found, NEW)
    # then
    assert [group["momentum"] for group in found[0].param_groups] == before
    advance(*found, STEPS_ON)
    advance(*wanted, STEPS_ON)
    assert_alike(found, wanted)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_that_is_a_tensor_stays_that_very_tensor(name):
    # given
    def make(lr):
        return build(name, lr, optimizer=lambda lr: adamw(lr, as_lr=lambda lr: torch.tensor(lr, dtype=torch.float64)))

    found, wanted = resumed(make, at=23), make(NEW)
    advance(*wanted, 23)
    rates = [group["lr"] for group in found[0].param_groups]
    # when
    rebase_lr(*found, NEW)
    # then
    assert all(group["lr"] is rate for group, rate in zip(found[0].param_groups, rates, strict=True))
    for _ in range(STEPS_ON):
        assert_alike(found, wanted)
        advance(*found, 1)
        advance(*wanted, 1)


def test_one_tensor_that_is_the_rate_of_two_groups_is_set_once():
    # given
    rate = torch.tensor(OLD, dtype=torch.float64)
    optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)], lr=rate)
    scheduler = kinds.ExponentialLR(optimizer, 0.5)
    advance(optimizer, scheduler, 1)
    before = [float(group["lr"]) for group in optimizer.param_groups]
    # when
    rebase_lr(optimizer, scheduler, NEW)
    # then
    after = [float(group["lr"]) for group in optimizer.param_groups]
    assert after == pytest.approx([lr * NEW / OLD for lr in before], rel=EXACT)


@pytest.mark.parametrize("name", ["cosine", "sequence", "lambda", "one cycle"])
def test_a_rate_in_single_precision_comes_out_as_near_as_that_is(name):
    # given
    def make(lr):
        return build(name, lr, optimizer=lambda lr: adamw(lr, as_lr=torch.tensor, capturable=True))

    found, wanted = resumed(make, at=23), make(NEW)
    advance(*wanted, 23)
    # when
    rebase_lr(*found, NEW)
    # then
    assert_alike(found, wanted, within=1e-5)


def fixture(lr):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=lr)
    return optimizer, kinds.LambdaLR(
        optimizer,
        lambda t: t / 200 if t < 200 else 0.5 * (1 + math.cos(math.pi * (t - 200) / (10_000 - 200))),
    )


@pytest.mark.parametrize(
    ("at", "wanted"),
    [(2010, 2.7545e-4), (2500, 2.6104e-4), (4000, 2.0180e-4), (5000, 1.5481e-4), (6000, 1.0732e-4), (10_000, 0.0)],
)
def test_the_rates_of_the_published_run_are_met(at, wanted):
    # given
    saved = fixture(OLD)
    saved[1].last_epoch = at - 1
    saved[1].step()
    found = fixture(3e-4)
    for part, other in zip(found, saved, strict=True):
        part.load_state_dict(other.state_dict())
    # when
    rebase_lr(*found, 3e-4)
    # then
    assert found[0].param_groups[0]["lr"] == pytest.approx(wanted, abs=5e-9)


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "LambdaLR", "OneCycleLR", "SequentialLR"])
def test_a_rate_that_was_asked_for_is_not_undone_at_the_next_step(name):
    # given: a cosine of 1,000 steps, saved at step 200
    def cosine(t):
        return 0.5 * (1 + math.cos(math.pi * t / 1000))

    def make(lr):
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=lr)
        scheduler = {
            "CosineAnnealingLR": lambda: kinds.CosineAnnealingLR(optimizer, 1000),
            "LambdaLR": lambda: kinds.LambdaLR(optimizer, cosine),
            "OneCycleLR": lambda: kinds.OneCycleLR(optimizer, lr, total_steps=1000),
            "SequentialLR": lambda: kinds.SequentialLR(
                optimizer, [kinds.CosineAnnealingLR(optimizer, 1000), kinds.ConstantLR(optimizer, 1.0, 1)], [1000]
            ),
        }[name]()
        return optimizer, scheduler

    found, wanted = resumed(make, at=200), make(3e-4)
    advance(*wanted, 201)
    # when
    rebase_lr(*found, 3e-4)
    advance(*found, 1)
    # then
    rate = found[0].param_groups[0]["lr"]
    assert rate == pytest.approx(wanted[0].param_groups[0]["lr"], rel=EXACT)
    if name != "OneCycleLR":
        assert found[0].param_groups[0]["initial_lr"] == 3e-4
        assert rate == pytest.approx(2.7107e-4, abs=5e-9)


def test_the_first_group_and_its_base_get_the_rate_to_the_last_bit():
    old = 5.9e-4
    assert old * (NEW / old) != NEW
    found = build("sequence", old)
    rebase_lr(*found, NEW)
    assert found[0].param_groups[0]["initial_lr"] == NEW
    assert [entry.base_lrs[0] for entry in found[1]._schedulers] == [NEW, NEW]


def test_the_change_is_logged_and_returned(caplog):
    # given
    found = build("cosine", OLD)
    # when
    with caplog.at_level(logging.INFO, logger="trimtab.resume"):
        change = rebase_lr(*found, NEW)
    # then
    assert (change.old, change.new) == (OLD, NEW)
    assert caplog.messages == ["LR re-base: 5e-04 -> 3e-04 on resume (schedule phase preserved)"]


def test_the_rate_that_it_has_changes_nothing_and_says_nothing(caplog):
    # given
    found = build("sequence", OLD)
    advance(*found, 25)
    before = copy.deepcopy([part.state_dict() for part in found])
    # when
    with caplog.at_level(logging.INFO, logger="trimtab.resume"):
        rebase_lr(*found, OLD)
    # then
    assert [numbers_in(part.state_dict()) for part in found] == [numbers_in(state) for state in before]
    assert caplog.messages == []


def test_a_second_change_is_as_good_as_one():
    # given
    found, wanted = build("sequence with a floor", OLD), build("sequence with a floor", NEW)
    advance(*found, 30)
    advance(*wanted, 30)
    # when
    rebase_lr(*found, 9e-4)
    rebase_lr(*found, NEW)
    # then
    assert_alike(found, wanted)


@pytest.mark.parametrize("name", ["triangular", "one cycle"])
def test_of_a_cycle_the_rate_is_its_highest(name):
    found = build(name, OLD)
    assert rebase_lr(*found, NEW).old == OLD


def test_without_a_scheduler_the_groups_alone_are_changed():
    # given
    optimizer = adamw(OLD)
    # when
    rebase_lr(optimizer, None, NEW)
    # then
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([NEW, NEW / 10], rel=EXACT)
    assert all("initial_lr" not in group for group in optimizer.param_groups)


def test_without_its_scheduler_a_rate_keeps_its_part_of_the_base():
    # given
    optimizer, scheduler = build("exponential", OLD)
    advance(optimizer, scheduler, 10)
    # when
    rebase_lr(optimizer, None, NEW)
    # then
    assert optimizer.param_groups[0]["initial_lr"] == NEW
    assert optimizer.param_groups[0]["lr"] == pytest.approx(NEW * 0.99**10, rel=EXACT)


@pytest.mark.parametrize("lr", [0, 0.0, -1e-4, math.nan, math.inf, True, "3e-4", None, torch.tensor(3e-4), [3e-4]])
def test_what_is_no_rate_is_refused_and_nothing_changes(lr):
    # given
    found = build("cosine", OLD)
    before = copy.deepcopy([part.state_dict() for part in found])
    # when
    with pytest.raises(UsageError, match="no learning rate: use a positive, finite number"):
        rebase_lr(*found, lr)
    # then
    assert [part.state_dict() for part in found] == before


def test_a_rate_of_numpy_is_a_rate():
    import numpy as np

    found = build("cosine", OLD)
    rebase_lr(*found, np.float64(NEW))
    assert type(found[0].param_groups[0]["initial_lr"]) is float


def test_a_whole_number_is_a_rate():
    found = build("cosine", 2)
    rebase_lr(*found, 1)
    assert found[1].base_lrs == [1.0, 0.1]


def test_a_first_group_at_zero_has_no_ratio_to_a_new_rate():
    optimizer = adamw(1.0, ratios=(0.0, 1e-4))
    with pytest.raises(UsageError, match=r"learning rate of 0\.0 .* Put a group with a positive rate first"):
        rebase_lr(optimizer, kinds.ExponentialLR(optimizer, 0.9), NEW)


def test_a_later_group_at_zero_stays_there():
    optimizer = adamw(OLD, ratios=(1.0, 0.0))
    rebase_lr(optimizer, kinds.ExponentialLR(optimizer, 0.9), NEW)
    assert [group["lr"] for group in optimizer.param_groups] == [NEW, 0.0]


def test_the_scheduler_of_another_optimizer_is_refused():
    _, scheduler = build("cosine", OLD)
    with pytest.raises(UsageError, match=r"CosineAnnealingLR sets the learning rates of another optimizer"):
        rebase_lr(adamw(OLD), scheduler, NEW)


@pytest.mark.parametrize(
    ("lr", "words"),
    [(5e-4, "5e-04"), (2.7545e-4, "2.7545e-04"), (1, "1e+00"), (1 / 3, "3.33333333e-01"), (0.1 * 3e-4, "3e-05")],
)
def test_a_rate_is_told_in_few_digits(lr, words):
    assert lr_in_words(lr) == words


def test_a_rate_that_is_kept_is_said_with_what_would_change_it():
    said = kept_lr(5e-5, 1e-5, option="lr=1e-05")
    assert said == "resume keeps 5e-05; pass lr=1e-05 to use 1e-05"


@pytest.mark.parametrize("name", ["cosine", "sequence", "one cycle", "triangular", "lambda"])
def test_the_rate_that_a_run_was_started_with_is_what_it_was_built_at_or_what_was_set_by_hand_since(name):
    optimizer, scheduler = build(name, OLD)
    advance(optimizer, scheduler, 5)
    assert asked_rates(optimizer, scheduler)[0] == pytest.approx(OLD, rel=EXACT)
    optimizer.param_groups[0]["lr"] = 0.5
    assert asked_rates(optimizer, scheduler)[0] == 0.5


def test_rates_that_are_kept_are_said_of_each_group():
    said = kept_rates([5e-5, 1e-5, 2e-5], [1e-5, 1e-5, 3e-5], option="lr=")
    assert said == [
        "resume keeps 5e-05; pass lr=1e-05 to use 1e-05",
        "resume keeps 2e-05 in parameter group 2, which was given 3e-05",
    ]
