"""Going on with another learning rate than the one that was saved: the schedule built afresh at it, at the same place.

Enters: an optimizer and its scheduler with their states loaded, and the new rate. Leaves: both as if they had been
built at that rate and stepped to where they are. Invariant: all or nothing. Every new value is worked out before the
first is set, and a schedule of which that cannot be known is refused by name; what a rate does not decide, momentum
for one, is left alone.

`optimizer.load_state_dict` restores `lr` and `initial_lr`, `scheduler.load_state_dict` restores `base_lrs` and
`_last_lr`: one that is forgotten undoes the others at the next step.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import numbers
import sys
import weakref
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from trimtab.errors import UsageError
from trimtab.notices import say
from trimtab.torch.lr_schedules import Scale, check_known, edits_of, leaves, moved, unwrapped
from trimtab.torch.ranks import Ranks

_LOG: Final = "resume"

_MOST_DIGITS: Final = 8
"""Digits after the point that a rate is told in at most: beyond them is rounding."""

_rebased: Final[weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]]] = weakref.WeakKeyDictionary()
"""Optimizers that were put at another rate, with their groups: a state that is loaded puts others in their place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rebase:
    """What `rebase_lr` changed.

    Attributes:
        old: The rate that the schedule was built at: of the first parameter group, the highest of a cycle.
        new: The rate that it is at now.
    """

    old: float
    new: float

    def __str__(self) -> str:
        change = f"{lr_in_words(self.old)} -> {lr_in_words(self.new)}"
        return f"LR re-base: {change} on resume (schedule phase preserved)"


def rebase_lr(optimizer: torch.optim.Optimizer, scheduler: Any, lr: float, *, quiet: bool = False) -> Rebase:
    """Puts an optimizer and its scheduler at another learning rate, the place in the schedule kept.

    Afterwards `lr` and `initial_lr` of every parameter group, `base_lrs` and `_last_lr` of the scheduler, and the
    highest and lowest rates of a cycle are those of the same schedule built at `lr` and stepped to the same place;
    groups keep their ratios. A constant floor (`eta_min`, `swa_lr`, a plateau's `min_lr`) stays where it is.

    Call it after both states were loaded. A tensor that is a group's rate is filled in place, which waits for its
    device. Logs one line, `LR re-base: 5e-04 -> 3e-04 on resume (schedule phase preserved)`, where the rate changes; of
    several ranks the first does.

    Args:
        optimizer: The optimizer, or Accelerate's wrapper of it.
        scheduler: What sets its rates: any scheduler of torch, those of `transformers.get_scheduler`, Accelerate's
            wrapper of one, schedulers of schedulers; None: the groups alone are changed.
        lr: The new rate of the first parameter group, positive: what its `initial_lr` is to be. Of a OneCycleLR or
            CyclicLR, alone or among others, the new `max_lr`.
        quiet: Whether the line is left to the caller, who knows better which rank speaks: it is `str()` of the result.

    Returns:
        The old rate and the new one.

    Raises:
        UsageError: `lr` is no positive finite number, the old rate is not, the scheduler is another optimizer's, or
            it is of a kind, or at a place, of which the rate cannot be worked out; it is named, and nothing changed.

    Example:
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        rebase_lr(optimizer, scheduler, 3e-4)
    """
    change, edits = _worked_out(optimizer, scheduler, lr)
    for place, name, value in edits:
        _set(place, name, value)
    if change.old != change.new:
        _rebased[inside_of(optimizer)] = optimizer.param_groups
        if not quiet and Ranks.of().rank == 0:
            say(_LOG, str(change), level=logging.INFO)
    return change


def check_rebase(optimizer: torch.optim.Optimizer, scheduler: Any, lr: float) -> None:
    """Refuses what `rebase_lr` would refuse; changes nothing, and says nothing.

    Args:
        optimizer: As there.
        scheduler: As there.
        lr: As there.

    Raises:
        UsageError: As there.
    """
    _worked_out(optimizer, scheduler, lr)


def was_rebased(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `rebase_lr` has put an optimizer, in a wrapper or not, at another rate than that of its last state."""
    return _rebased.get(inside_of(optimizer)) is optimizer.param_groups


def kept_lr(saved: float, asked: float, *, option: str) -> str:
    """What is said where a checkpoint's rate is kept though the run was started with another.

    Args:
        saved: The rate in the checkpoint.
        asked: The rate that the run was started with.
        option: What would use it, as the user spells it.

    Example:
        >>> kept_lr(5e-5, 1e-5, option="lr=1e-05")
        'resume keeps 5e-05; pass lr=1e-05 to use 1e-05'
    """
    return f"resume keeps {lr_in_words(saved)}; pass {option} to use {lr_in_words(asked)}"


def lr_in_words(lr: float) -> str:
    """A learning rate in the fewest digits that tell it: `5e-04`, `2.7545e-04`."""
    spelled = (f"{lr:.{num_digits}e}" for num_digits in range(_MOST_DIGITS))
    return next((text for text in spelled if math.isclose(float(text), lr, rel_tol=1e-12)), f"{lr:.{_MOST_DIGITS}e}")


def base_lr(optimizer: torch.optim.Optimizer, scheduler: Any) -> float | None:
    """The rate that a schedule was built at, as `rebase_lr` counts it; None where there is no positive one.

    Args:
        optimizer: The optimizer.
        scheduler: What sets its rates; None: nothing does.
    """
    rate = _found_rate(optimizer, unwrapped(scheduler))
    return rate if math.isfinite(rate) and rate > 0 else None


def built_rates(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
    """The rate of each parameter group that the schedule was built at, the first as `rebase_lr` counts it.

    Args:
        optimizer: The optimizer.
        scheduler: What sets its rates; None: nothing does.
    """
    others = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups[1:]]
    return [_found_rate(optimizer, unwrapped(scheduler)), *others]


def asked_rates(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
    """The rate of each parameter group that a run was started with: that of `built_rates`, or one set by hand since."""
    told = getattr(unwrapped(scheduler), "_last_lr", None)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    built = built_rates(optimizer, scheduler)
    if not isinstance(told, list) or len(told) != len(rates):
        return built
    return [
        base if math.isclose(rate, float(last), rel_tol=1e-9) else rate
        for rate, last, base in zip(rates, told, built, strict=True)
    ]


def kept_rates(saved: list[float], asked: list[float], *, option: str) -> list[str]:
    """What is said of the rates of groups that a checkpoint's are kept in the place of, a sentence each.

    Args:
        saved: The rates in the checkpoint, as `built_rates` finds them once it is loaded.
        asked: Those that the run was started with, as `asked_rates` found them before.
        option: What asks for another rate of the first group, as the user spells it, up to the rate.
    """
    said = []
    for number, (kept, wanted) in enumerate(zip(saved, asked, strict=True)):
        # Where a group has kept its ratio to the first one, that one has said it.
        implied = kept if number == 0 else kept * (asked[0] / saved[0] if saved[0] else 1.0)
        if any(math.isclose(rate, wanted, rel_tol=1e-9) for rate in (kept, implied)) or not math.isfinite(wanted):
            continue
        if number == 0 and wanted > 0:
            said.append(kept_lr(kept, wanted, option=f"{option}{wanted:g}"))
        else:
            said.append(
                f"resume keeps {lr_in_words(kept)} in parameter group {number}, which was given {lr_in_words(wanted)}"
            )
    return said


def check_lr(lr: object, *, name: str = "lr") -> float:
    """Refuses what is no learning rate to go on with.

    Args:
        lr: What was given.
        name: How the user spelled it.

    Raises:
        UsageError: It is no positive, finite number.
    """
    if not isinstance(lr, bool) and isinstance(lr, numbers.Real):
        try:
            number = float(lr)
        except OverflowError:  # a whole number of any size, or a fraction of two
            number = math.inf
        if math.isfinite(number) and number > 0:
            return number
    # More digits than Python spells may be in a whole number.
    is_long = isinstance(lr, int) and abs(lr) > sys.float_info.max
    spelled = "a number beyond all floats" if is_long else repr(lr)
    raise UsageError(
        f"{name}={spelled} ({type(lr).__name__}) is no learning rate: use a positive, finite number such as 3e-4."
    )


def inside_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside a wrapper, Accelerate's for one, which holds it as `optimizer`."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _refuse_stranger(scheduler: Any, *, optimizer: torch.optim.Optimizer) -> None:
    """Refuses a scheduler that sets the rates of another optimizer."""
    if scheduler is None:
        return
    # Wrappers hand on the list itself.
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    if groups is not None and groups is not optimizer.param_groups:
        raise UsageError(
            f"This {type(scheduler).__name__} sets the learning rates of another optimizer than the one given; nothing "
            "was changed. Give the optimizer that the scheduler was built with."
        )


def _old_rate(optimizer: torch.optim.Optimizer, scheduler: Any) -> float:
    old = _found_rate(optimizer, scheduler)
    if math.isfinite(old) and old > 0:
        return old
    raise UsageError(
        f"The schedule was built at a learning rate of {old} (that of the first parameter group), to which a new one "
        "has no ratio; nothing was changed. Put a group with a positive rate first, or build the optimizer and the "
        "scheduler at the new rate and step them to their place instead of loading their states."
    )


def _found_rate(optimizer: torch.optim.Optimizer, scheduler: Any) -> float:
    first = optimizer.param_groups[0]
    for leaf in leaves(scheduler):
        if isinstance(leaf, OneCycleLR):
            return float(first.get("max_lr", math.nan))
        if isinstance(leaf, CyclicLR):
            return float(leaf.max_lrs[0])
    return float(first.get("initial_lr", first["lr"]))


def _worked_out(
    optimizer: torch.optim.Optimizer, scheduler: Any, lr: float
) -> tuple[Rebase, list[tuple[Any, str, Any]]]:
    """What is changed, in words and one by one."""
    new = check_lr(lr)
    inner = unwrapped(scheduler)
    _refuse_stranger(inner, optimizer=optimizer)
    scale = Scale(old=_old_rate(optimizer, inner), new=new)
    if inner is not None:
        check_known(inner, scale=scale, optimizer=optimizer)
    return Rebase(old=scale.old, new=new), _edits(optimizer, inner, scale=scale)


def _edits(optimizer: torch.optim.Optimizer, scheduler: Any, *, scale: Scale) -> list[tuple[Any, str, Any]]:
    """What changes, all of it worked out before anything does: where, under which name, and to what."""
    groups = optimizer.param_groups
    names = ["initial_lr"]
    if any(isinstance(leaf, OneCycleLR) for leaf in leaves(scheduler)):
        names += ["max_lr", "min_lr"]
    edits = [(group, name, scale.of(group[name])) for group in groups for name in names if name in group]
    rates = [float(group["lr"]) for group in groups]
    if scheduler is None:
        new = scale.all_of(rates)
    else:
        new = moved(scheduler, rates, scale=scale, optimizer=optimizer)
        edits += edits_of(scheduler, scale=scale, optimizer=optimizer)
    return [*edits, *((group, "lr", rate) for group, rate in zip(groups, new, strict=True))]


def _set(place: Any, name: str, value: Any) -> None:
    if not isinstance(place, dict):
        setattr(place, name, value)
    elif name == "lr" and isinstance(place["lr"], torch.Tensor):
        # A captured graph reads this very tensor.
        place["lr"].fill_(value)
    else:
        place[name] = value
