"""What every scheduler does to a rate: whether it goes with the learning rate, and what it is at another one.

Enters: a scheduler, the rates that it has set, an old and a new learning rate. Leaves: the rates that the same
schedule, built afresh at the new one, would have set at this place. Invariant: a kind that is not known, and a floor
whose share in the rate cannot be told, is refused by name; a subclass that changes how rates are made is not known.

Most go with the learning rate: they multiply, or begin at `base_lrs`. The others are in `trimtab.torch.lr_floors`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch.optim import lr_scheduler as kinds
from torch.optim.swa_utils import SWALR

from trimtab.errors import UsageError
from trimtab.torch import lr_floors
from trimtab.torch.lr_factors import Rates, made_of_a_rate, same_rate, why_not_afresh
from trimtab.torch.lr_floors import FloorError

_COSINES: Final = (kinds.CosineAnnealingLR, kinds.CosineAnnealingWarmRestarts)
_CARRYING: Final = (kinds.MultiplicativeLR, SWALR)
"""In a sequence these go on from the rate that the one before them has left; all others begin at the base again."""

_KNOWN: Final = (
    *_COSINES,
    *_CARRYING,
    kinds.LambdaLR,
    kinds.StepLR,
    kinds.MultiStepLR,
    kinds.ConstantLR,
    kinds.LinearLR,
    kinds.ExponentialLR,
    kinds.PolynomialLR,
    kinds.CyclicLR,
    kinds.OneCycleLR,
    kinds.ReduceLROnPlateau,
    kinds.SequentialLR,
    kinds.ChainedScheduler,
)
_RATE_MAKERS: Final = frozenset(("get_lr", "step", "_get_closed_form_lr", "_update_lr", "_reduce_lr"))
"""Methods in which torch makes rates: a subclass with one of its own may do anything."""

_OF_EACH_GROUP: Final = ("base_lrs", "_last_lr", "lr_lambdas", "max_lrs", "min_lrs")
"""What a scheduler holds one of for each parameter group."""

_BUILD_AND_STEP: Final = "Build it at the new rate and step it to its place, instead of loading its state"


class Scale(NamedTuple):
    """From one learning rate to another."""

    old: float
    new: float

    @property
    def ratio(self) -> float:
        """The new rate over the old one."""
        return self.new / self.old

    def of(self, value: Any) -> Any:
        """A rate that goes with the learning rate: a number, or a tensor of the same type and place."""
        # In this order the rate that was the old one becomes the new one, to the last bit.
        return like(value, self.new * (float(value) / self.old))

    def all_of(self, values: Iterable[Any]) -> list[Any]:
        """All rates of a list, in a list of its own: a sequence of schedulers shares one with its members."""
        return [self.of(value) for value in values]


def like(value: Any, rate: float) -> Any:
    """A rate in the form of another one: a tensor of the same type and place, or a number."""
    return torch.full_like(value, rate) if isinstance(value, torch.Tensor) else rate


def unwrapped(scheduler: Any) -> Any:
    """The scheduler inside a wrapper, Accelerate's for one, which holds it as `scheduler`."""
    while not isinstance(scheduler, kinds.LRScheduler) and hasattr(scheduler, "scheduler"):
        scheduler = scheduler.scheduler
    return scheduler


def leaves(scheduler: Any) -> list[Any]:
    """The schedulers that make rates themselves, of one that may be made of others, in order; none of None."""
    if scheduler is None:
        return []
    inner = getattr(scheduler, "_schedulers", None)
    return [scheduler] if inner is None else [leaf for entry in inner for leaf in leaves(entry)]


def check_known(scheduler: Any, *, scale: Scale, optimizer: torch.optim.Optimizer) -> None:
    """Refuses with `UsageError`, by name, what is of no known kind, or holds a rate that it was not built with anew.

    A factor that has a floor holds it as a share of the rate that it was built at: only one that was built at the new
    rate gives the new schedule, and of an object that is called a state puts the old share back.
    """
    kind = _kind(scheduler)
    num_groups = len(optimizer.param_groups)
    for name in _OF_EACH_GROUP:
        num_known = len(getattr(scheduler, name, optimizer.param_groups))
        if num_known != num_groups:
            refuse(
                scheduler,
                f"was built for {_groups(num_known)} ({name}), and the optimizer has {num_groups}. Add the groups "
                "before the scheduler is built, as the rates of one that was added later cannot be known",
            )
    for entry in getattr(scheduler, "_schedulers", ()):
        check_known(entry, scale=scale, optimizer=optimizer)
    if kind is kinds.LambdaLR:
        why = why_not_afresh(scheduler.lr_lambdas, rates=_rates(scheduler, scale=scale, optimizer=optimizer))
        if why:
            refuse(scheduler, why)
    if kind is kinds.MultiplicativeLR and not same_rate(scale.old, scale.new):
        held = made_of_a_rate(scheduler.lr_lambdas, rates=_rates(scheduler, scale=scale, optimizer=optimizer))
        if held:
            refuse(scheduler, f"holds {held}, and what its factors were before cannot be told. {_BUILD_AND_STEP}")


def moved(scheduler: Any, rates: Sequence[float], *, scale: Scale, optimizer: torch.optim.Optimizer) -> list[float]:
    """The rates of a schedule at the new learning rate, at the place where it is.

    Args:
        scheduler: The scheduler, no wrapper of one; `check_known` has let it pass.
        rates: (G,) the rates that it has set.
        scale: From the old learning rate to the new one.
        optimizer: Whose rates they are, unchanged as yet.

    Raises:
        UsageError: They cannot be known; the scheduler is named.
    """
    kind = _kind(scheduler)
    inner: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    if scale.old == scale.new and kind is not kinds.LambdaLR:
        return list(rates)
    if kind is kinds.SequentialLR:
        now = inner[_place(scheduler)]
        if _kind(now) in _CARRYING:
            where = f"comes before a {type(now).__name__}, which goes on from it"
            _refuse_floors(inner[: _place(scheduler)], where=where, scale=scale, optimizer=optimizer)
        return moved(now, rates, scale=scale, optimizer=optimizer)
    if kind is kinds.ChainedScheduler:
        if len(inner) == 1:
            return moved(inner[0], rates, scale=scale, optimizer=optimizer)
        where = "is chained with others, which multiply it too"
        _refuse_floors(inner, where=where, scale=scale, optimizer=optimizer)
        return scale.all_of(rates)
    try:
        return _moved_alone(scheduler, kind, list(rates), scale=scale, optimizer=optimizer)
    except FloorError as error:
        refuse(scheduler, str(error))


def edits_of(
    scheduler: Any, *, scale: Scale, optimizer: torch.optim.Optimizer, is_linear: bool = False
) -> list[tuple[Any, str, Any]]:
    """What changes in a scheduler and in those that it is made of: each a scheduler, an attribute, a new value.

    Args:
        scheduler: The scheduler, no wrapper of one; `check_known` has let it pass.
        scale: From the old learning rate to the new one.
        optimizer: Whose rates it sets, unchanged as yet.
        is_linear: Whether its last rates go with the learning rate whatever its kind: its turn has not come.

    Raises:
        UsageError: As for `moved`.
    """
    kind = _kind(scheduler)
    names = ["base_lrs", *(["max_lrs"] if kind is kinds.CyclicLR else []), *(["_init_lrs"] if kind is None else [])]
    edits = [(scheduler, name, scale.all_of(getattr(scheduler, name))) for name in names if hasattr(scheduler, name)]

    last = scheduler._last_lr
    rates = [float(value) for value in last]
    new = scale.all_of(rates) if is_linear else moved(scheduler, rates, scale=scale, optimizer=optimizer)
    edits.append((scheduler, "_last_lr", [like(value, rate) for value, rate in zip(last, new, strict=True)]))

    inner: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    place = _place(scheduler) if kind is kinds.SequentialLR else len(inner)
    for index, entry in enumerate(inner):
        edits += edits_of(entry, scale=scale, optimizer=optimizer, is_linear=is_linear or index > place)
    return edits


def refuse(scheduler: Any, why: str) -> NoReturn:
    """Raises the `UsageError` of a scheduler; `why` follows its name and "it", and says what to do."""
    raise UsageError(f"{type(scheduler).__name__} keeps its learning rate, and nothing was changed: it {why}.")


def _moved_alone(
    scheduler: Any, kind: type | None, rates: list[float], *, scale: Scale, optimizer: torch.optim.Optimizer
) -> list[float]:
    """The new rates of a scheduler that has made the old ones by itself."""
    if kind is kinds.LambdaLR:
        bases = [float(base) for base in scale.all_of(scheduler.base_lrs)]
        # Its factor and not the old rate: one that holds a rate was built anew, and gives another part of it.
        return [
            base * float(factor(scheduler.last_epoch)) for base, factor in zip(bases, scheduler.lr_lambdas, strict=True)
        ]
    if kind in _COSINES and scheduler.eta_min:
        began = [float(group["initial_lr"]) for group in optimizer.param_groups if "initial_lr" in group]
        # A OneCycleLR that is built after it puts another rate there, at which a sequence begins.
        if kind is kinds.CosineAnnealingLR and began != [float(base) for base in scheduler.base_lrs]:
            raise FloorError(
                f"has a floor (eta_min={scheduler.eta_min}) and was built at the rates {scheduler.base_lrs}, and the "
                f"groups begin at {began}. Build the schedulers that change where they begin before it"
            )
        return [
            lr_floors.above_floor(scheduler, rate, old_base=float(base), new_base=float(scale.of(base)))
            for rate, base in zip(rates, scheduler.base_lrs, strict=True)
        ]
    if kind is SWALR:
        ends = [float(group["swa_lr"]) for group in optimizer.param_groups]
        return [
            lr_floors.averaged(scheduler, rate, swa_lr=end, ratio=scale.ratio)
            for rate, end in zip(rates, ends, strict=True)
        ]
    if kind is kinds.ReduceLROnPlateau:
        began = [float(group["initial_lr"]) for group in optimizer.param_groups if "initial_lr" in group]
        return lr_floors.reduced(scheduler, rates, old_bases=began, ratio=scale.ratio)
    if kind is None:
        lr_floors.check_greedy(scheduler)
    return scale.all_of(rates)


def _kind(scheduler: Any) -> type | None:
    """The class of torch that makes a scheduler's rates; None for `transformers`' GreedyLR."""
    own: set[str] = set()
    for entry in type(scheduler).__mro__:
        if entry in _KNOWN:
            if own & _RATE_MAKERS:
                break
            return entry
        own.update(vars(entry))
    if type(scheduler).__name__ == "GreedyLR" and type(scheduler).__module__.startswith("transformers."):
        return None
    refuse(
        scheduler,
        "is of no kind that is known here, so whether all its rates go with the learning rate cannot be told. "
        f"{_BUILD_AND_STEP}",
    )


def _place(sequence: kinds.SequentialLR) -> int:
    """Which of its schedulers a sequence is at."""
    return bisect_right(sequence._milestones, sequence.last_epoch)


def _refuse_floors(entries: Sequence[Any], *, where: str, scale: Scale, optimizer: torch.optim.Optimizer) -> None:
    """Refuses schedulers that have a floor, at a place where its share in the rate cannot be told."""
    for leaf in (leaf for entry in entries for leaf in leaves(entry)):
        floor = lr_floors.floor_of(leaf)
        if _kind(leaf) is kinds.LambdaLR:
            floor = made_of_a_rate(leaf.lr_lambdas, rates=_rates(leaf, scale=scale, optimizer=optimizer))
        if floor:
            refuse(leaf, f"has a floor ({floor}) and {where}. Without the floor the rates go with the learning rate")


def _rates(scheduler: Any, *, scale: Scale, optimizer: torch.optim.Optimizer) -> Rates:
    """What the numbers in its factors are compared with."""
    bases = [float(base) for base in scheduler.base_lrs]
    return Rates(
        built_at=float(optimizer.defaults["lr"]),
        old=(scale.old, *bases),
        new=(scale.new, *(float(scale.of(base)) for base in bases)),
    )


def _groups(number: int) -> str:
    return "1 parameter group" if number == 1 else f"{number} parameter groups"
