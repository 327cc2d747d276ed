"""Whether learning rates go on over a resume: the schedules of torch cut anywhere, and shifted by a step."""

import math

import pytest
import torch

from trimtab.resume.breaks import SeenStep
from trimtab.resume.rates import judge_lrs


def rates(lrs, *, first):
    return [SeenStep(first + place, 1.0, lr) for place, lr in enumerate(lrs)]


def schedule(kind: str, num: int) -> list[float]:
    """The rate of each step from 1 on, by torch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1e-3)
    made = {
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 200),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200),
        "warmup": lambda: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 50),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150),
            ],
            [50],
        ),
        "exponential": lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98),
        "steps": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 17, 0.5),
        "restarts": lambda: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1),
        "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=220),
        "cyclic": lambda: torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-4, 1e-3, step_size_up=20),
    }[kind]()
    found = []
    for _ in range(num):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return found


KINDS = ["linear", "cosine", "warmup", "exponential", "steps", "restarts", "constant", "one cycle", "cyclic"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("knows", ["all", "next", "nothing"])
def test_a_schedule_that_goes_on_is_never_called_broken_wherever_it_is_cut(kind: str, knows: str) -> None:
    lrs = schedule(kind, 200)
    for cut in range(1, 190):
        found = judge_lrs(
            rates(lrs[max(0, cut - 32) : cut], first=max(0, cut - 32) + 1),
            rates(lrs[cut : cut + 8], first=cut + 1),
            recorded=rates(lrs[cut : cut + 30], first=cut + 1) if knows == "all" else [],
            next_lr=lrs[cut] if knows != "nothing" else None,
        )
        assert found == [], (cut, found)


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential"])
@pytest.mark.parametrize(
    ("knows", "by"),
    [
        *((knows, by) for knows in ("all", "one", "next", "nothing") for by in (-1, 1)),
        ("the wrong next", -1),  # nobody saves the rate of the step after the next
    ],
)
def test_a_schedule_that_is_off_by_one_is_named(kind: str, knows: str, by: int) -> None:
    lrs = schedule(kind, 200)
    for cut in range(20, 100, 7):
        [found] = judge_lrs(
            rates(lrs[max(0, cut - 32) : cut], first=max(0, cut - 32) + 1),
            rates(lrs[cut + by : cut + by + 8], first=cut + 1),
            recorded=rates(lrs[cut : cut + {"all": 30, "one": 1}.get(knows, 0)], first=cut + 1),
            # Saved before scheduler.step(), an optimizer has the rate of the step that it has just taken.
            next_lr={"nothing": None, "the wrong next": lrs[cut - 1]}.get(knows, lrs[cut]),
        )
        assert (found.kind, found.severity) == ("lr_off_by_one", "warning")
        assert ("that of the step before" if by < 0 else "that of the step after") in found.text
        assert (found.step, found.found) == (cut + 1, lrs[cut + by])


@pytest.mark.parametrize("kind", ["cosine", "exponential", "linear", "warmup"])
def test_another_rate_is_not_called_off_by_one(kind: str) -> None:
    lrs = schedule(kind, 200)
    for cut in range(20, 100, 7):
        for times in (0.5, 0.9, 1.1, 2):
            [found] = judge_lrs(
                rates(lrs[cut - 20 : cut], first=cut - 19),
                rates([times * lr for lr in lrs[cut : cut + 8]], first=cut + 1),
                next_lr=lrs[cut],
            )
            assert found.kind == "lr", (cut, times)


@pytest.mark.parametrize(("part", "is_told"), [(6e-8, False), (5e-7, False), (2e-6, True), (-2e-6, True), (3e-5, True)])
def test_what_a_float32_rounds_is_the_same_rate_and_a_step_of_a_long_cosine_is_another(
    part: float, is_told: bool
) -> None:
    found = judge_lrs([], rates([1e-3 * (1 + part)], first=41), next_lr=1e-3)
    assert [one.kind for one in found] == (["lr"] if is_told else [])


def test_at_the_top_of_a_long_cosine_nothing_tells_one_step_from_the_next() -> None:
    lrs = [1e-3 * (1 + math.cos(math.pi * step / 1e6)) / 2 for step in range(60)]
    assert judge_lrs(rates(lrs[8:40], first=9), rates(lrs[40:48], first=41), next_lr=lrs[40]) == []


def test_the_rate_that_is_one_step_late_is_told_with_the_right_one() -> None:
    # steps 3 to 5 were at 9e-6, 8e-6, 7e-6; step 6 should be at 6e-6
    [found] = judge_lrs(rates([9e-6, 8e-6, 7e-6], first=3), rates([7e-6, 6e-6, 5e-6], first=6))
    assert found.kind == "lr_off_by_one"
    assert found.text.startswith("the learning rate of step 6 is 7e-06, and 6e-06 by the schedule: off by one")


def test_another_rate_is_told_with_both() -> None:
    lrs = schedule("cosine", 60)
    tripled = rates([3 * lr for lr in lrs[40:48]], first=41)
    for recorded, next_lr in (([], lrs[40]), (rates(lrs[40:50], first=41), None)):
        [found] = judge_lrs(rates(lrs[8:40], first=9), tripled, recorded=recorded, next_lr=next_lr)
        assert (found.kind, found.expected) == ("lr", pytest.approx(lrs[40]))
        assert "(3x)" in found.text


def test_without_rates_nothing_is_told() -> None:
    assert judge_lrs([], []) == []
    assert judge_lrs(rates([1e-3], first=1), rates([None] * 8, first=2)) == []
    assert judge_lrs([], rates([1e-3], first=1)) == []
