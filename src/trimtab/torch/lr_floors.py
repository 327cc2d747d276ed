"""Rates that do not follow the learning rate: a floor that was given as a number of its own.

Enters: a scheduler that has one, and the rate that it has made of the old learning rate. Leaves: the rate that it would
have made of the new one, worked out from its closed form. Invariant: exact, or refused with `FloorError`; never a guess
at what a schedule went through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from trimtab.torch.lr_factors import SAME, same_rate

_WITHOUT_STATE: Final = "Build it at the new rate, and leave its saved state out"


class FloorError(Exception):
    """What the rate would be cannot be known; says why and what to do, in words that follow the scheduler's name."""


def floor_of(scheduler: Any) -> str:
    """The floor of a scheduler, as its setting and the value; "" where it has none."""
    if getattr(scheduler, "eta_min", 0):
        return f"eta_min={scheduler.eta_min}"
    if isinstance(scheduler, SWALR):
        return f"swa_lr={[float(group['swa_lr']) for group in scheduler.optimizer.param_groups]}"
    return ""


def above_floor(scheduler: Any, rate: float, *, old_base: float, new_base: float) -> float:
    """The rate of a cosine that ends at `eta_min`: what is above the floor goes with what the base is above it.

    Args:
        scheduler: A CosineAnnealingLR or CosineAnnealingWarmRestarts.
        rate: What it has made of the old base.
        old_base: The rate that it was built at.
        new_base: The rate that it is to be at.

    Raises:
        FloorError: It was built at its floor, and somewhere between other schedules.
    """
    floor = float(scheduler.eta_min)
    if old_base != floor:
        return floor + (rate - floor) * ((new_base - floor) / (old_base - floor))
    # The old schedule was level, and shows nothing of its shape. A sequence of sequences steps its first schedule more
    # than once at the beginning, which a cosine without restarts takes along.
    is_restarting = isinstance(scheduler, CosineAnnealingWarmRestarts)
    is_plain = is_restarting or scheduler._step_count - 1 == scheduler.last_epoch
    if not is_plain or not same_rate(rate, floor):
        raise FloorError(
            f"was built at its floor (eta_min={floor:.6g}), and what its rates show is not its shape. {_WITHOUT_STATE}"
        )
    done, whole = (scheduler.T_cur, scheduler.T_i) if is_restarting else (scheduler.last_epoch, scheduler.T_max)
    return floor + (new_base - floor) * (1 + math.cos(math.pi * done / whole)) / 2


def averaged(scheduler: SWALR, rate: float, *, swa_lr: float, ratio: float) -> float:
    """The rate on the way to `swa_lr`: as much of that as there is in it, the rest in proportion.

    Args:
        scheduler: The scheduler.
        rate: What it has made of the rate that it began at.
        swa_lr: Where it ends.
        ratio: New learning rate over old one.
    """
    if scheduler.anneal_epochs == 0:
        return swa_lr
    anneal: Callable[[float], float] = scheduler.anneal_func
    step = scheduler._step_count - 1
    # A sequence of sequences makes the first step of its first schedule again for each of them, and puts the rate back
    # to its base each time: that was begun with where the count of the last one stands.
    begun = anneal(_part(step - scheduler.last_epoch - 1, scheduler.anneal_epochs))
    done = anneal(_part(step, scheduler.anneal_epochs))
    kept = 0.0 if begun == 1 else (1 - done) / (1 - begun)
    return ratio * rate + (1 - ratio) * swa_lr * (1 - kept)


def _part(step: int, num_steps: int) -> float:
    return max(0.0, min(1.0, step / num_steps))


def reduced(scheduler: ReduceLROnPlateau, rates: list[float], *, old_bases: list[float], ratio: float) -> list[float]:
    """The rates of a plateau's schedule: the new bases, reduced as often as the old ones were.

    All groups are reduced at the same moments. A group that stands at its floor does not tell how often that was;
    another one does, or all of the new ones stand at theirs too.

    Args:
        scheduler: The scheduler.
        rates: (G,) the groups' rates now.
        old_bases: (G,) the rates that they began at; fewer where nobody kept them.
        ratio: New learning rate over old one.

    Raises:
        FloorError: It cannot be told how often it has reduced.
    """
    if len(old_bases) < len(rates):
        if scheduler.last_epoch > scheduler.patience:
            raise FloorError(
                f"may have reduced the rate to the {rates[0]:.6g} that it is, and keeps no rate that it began at. Put "
                "that into every group of the optimizer as group['initial_lr'], before the state is saved or now"
            )
        old_bases = rates
    floors = [float(floor) for floor in scheduler.min_lrs]
    shrink = partial(_shrunk, factor=scheduler.factor, eps=scheduler.eps)

    def all_shrunk(values: list[float]) -> list[float]:
        return [shrink(value, floor) for value, floor in zip(values, floors, strict=True)]

    counts = [_num_reductions(*group, shrink=shrink) for group in zip(rates, old_bases, floors, strict=True)]
    new = [ratio * base for base in old_bases]
    for _ in range(max(counts)):
        new = all_shrunk(new)
    if all_shrunk(rates) == rates and all_shrunk(new) != new:
        raise FloorError(
            f"stands at its floor (min_lr={scheduler.min_lrs}, eps={scheduler.eps}), and does not record how often it "
            f"would have reduced the rate beyond that. {_WITHOUT_STATE}"
        )
    return new


def check_greedy(scheduler: Any) -> None:
    """Refuses a GreedyLR with `FloorError` once it may have moved the rate."""
    if scheduler.last_epoch > scheduler.patience:
        raise FloorError(
            f"moves the rate between bounds (min_lr={scheduler.min_lrs}, max_lr={scheduler.max_lrs}) as its metric "
            f"goes, and does not record how it came to where it is. {_WITHOUT_STATE}"
        )


def _shrunk(rate: float, floor: float, *, factor: float, eps: float) -> float:
    """A rate after one reduction, as torch makes it: one that would change by `eps` or less stays as it is."""
    lower = max(rate * factor, floor)
    return lower if rate - lower > eps else rate


def _num_reductions(rate: float, base: float, floor: float, *, shrink: Callable[[float, float], float]) -> int:
    """How often a base was reduced to give a rate; of one at its floor how often at least."""
    num_done, reached = 0, base
    while not same_rate(reached, rate):
        lower = shrink(reached, floor)
        if lower == reached or lower < rate * (1 - SAME):
            raise FloorError(
                f"began at {base:.6g} and is at {rate:.6g}, where its reductions do not lead: something else has set "
                f"the rate. {_WITHOUT_STATE}"
            )
        num_done, reached = num_done + 1, lower
    return num_done
