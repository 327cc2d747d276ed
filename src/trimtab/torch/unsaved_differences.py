"""What differs between a live training and the same one as it was loaded, beside the states that a checkpoint holds.

Enters: the live objects, and objects of the same make that a checkpoint was loaded into. Leaves: a sentence for each
kind of thing that differs, with names of the module inside. Invariants: nothing is changed, no collective is called.

A `state_dict` has neither which weights are one, nor which are frozen, nor buffers that are not saved, nor the
functions of a scheduler: what was built has its own, and the steps behind a resume go by them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from trimtab.text import listed, plain
from trimtab.torch.lr_schedules import leaves, unwrapped
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.naming import weights_of
from trimtab.torch.state_differences import differences

_MOST_NAMED: Final = 3

_NEAR: Final = 100
"""Steps for which the functions of two schedulers are compared one by one."""

_FAR: Final = 1_000_000
"""Step up to which they are compared at steps that lie 5 % apart."""


def model_differences(live: nn.Module, loaded: nn.Module, *, without: Collection[str] = ()) -> Iterator[str]:
    """What differs in how two models are made: weights that are one, that are frozen, and buffers that are not saved.

    Such buffers are compared where both models have them in one shape and type: others are grown as they are needed.

    Args:
        live: The model that trains, wrapped or not.
        loaded: The other one, wrapped in whatever way.
        without: Names of buffers that are not compared.
    """
    here, there = _parameters(live), _parameters(loaded)
    yield from _ties(here, there)
    for is_frozen, said in ((True, "frozen in the training, and not"), (False, "frozen")):
        names = [
            name
            for name, one in here.items()
            if name in there and one.requires_grad != there[name].requires_grad and one.requires_grad != is_frozen
        ]
        if names:
            end = "" if is_frozen else ", and not in the training"
            yield f"{_named(names)} {'is' if len(names) == 1 else 'are'} {said} in what was built{end}"
    buffers, others = _unsaved_buffers(live), _unsaved_buffers(loaded)
    for name, buffer in buffers.items():
        other = others.get(name)
        if other is not None and name not in without and _kind(buffer) == _kind(other):
            for said in differences(buffer, other, where=plain(name)):
                yield f"{said} (a buffer that is not saved)"


def function_differences(live: Any, loaded: Any) -> Iterator[str]:
    """Where the functions of two schedulers, of a LambdaLR say, give other rates for steps to come.

    Each is called with numbers of steps, as torch calls it; an object that is called is called in a copy of itself.

    Args:
        live: That of the training, or None.
        loaded: The other one, with the same state.
    """
    for one, other in zip(leaves(unwrapped(live)), leaves(unwrapped(loaded)), strict=False):
        compared = set()
        for number, (mine, its) in enumerate(zip(_functions(one), _functions(other), strict=False)):
            if (id(mine), id(its)) in compared:  # one function for all groups
                continue
            compared.add((id(mine), id(its)))
            apart = _first_apart(_copied(mine), _copied(its), at=one.last_epoch)
            if apart is not None:
                step, given, built = apart
                yield (
                    f"the function of the {type(one).__name__} for parameter group {number} gives {given} after {step} "
                    f"steps in the training and {built} in what was built"
                )


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    found = module_inside(model).named_parameters(remove_duplicate=False)
    return {bare_name(name): parameter for name, parameter in found}


def _ties(here: Mapping[str, nn.Parameter], there: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Names that are one weight on one side, and several on the other."""
    both = here.keys() & there.keys()
    tied, others = _tied(here, both), _tied(there, both)
    for names in tied:
        if not any(names <= group for group in others):
            yield f"{_named(sorted(names))} are one weight in the training, and not in what was built"
    for names in others:
        if not any(names <= group for group in tied):
            yield f"{_named(sorted(names))} are one weight in what was built, and not in the training"


def _tied(parameters: Mapping[str, nn.Parameter], names: Collection[str]) -> list[frozenset[str]]:
    by_weight: dict[int, set[str]] = {}
    for name, parameter in parameters.items():
        if name in names:
            by_weight.setdefault(id(parameter), set()).add(name)
    return [frozenset(group) for group in by_weight.values() if len(group) > 1]


def _unsaved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    saved = weights_of(model)
    named = ((bare_name(name), buffer) for name, buffer in module_inside(model).named_buffers(remove_duplicate=False))
    return {name: buffer for name, buffer in named if name not in saved}


def _functions(scheduler: Any) -> list[Callable[[int], Any]]:
    """The functions of steps that a scheduler of torch was given, and whose code no state holds."""
    found = [*getattr(scheduler, "lr_lambdas", ()), getattr(scheduler, "_scale_fn_custom", None)]
    return [function for function in found if callable(function)]


def _copied(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """An object with attributes of its own; what they hold, a whole model perhaps, is not copied."""
    try:
        return copy.copy(function)
    except Exception:  # noqa: BLE001 - somebody else's class; torch calls it likewise
        return function


def _first_apart(
    one: Callable[[int], Any], other: Callable[[int], Any], *, at: int
) -> tuple[int, float | str, float | str] | None:
    """The first of the steps to come for which two functions give something else, and what they give."""
    ahead = 1
    while ahead < _FAR:
        mine, its = _given(one, at + ahead), _given(other, at + ahead)
        if mine != its and not (_is_nan(mine) and _is_nan(its)):
            return at + ahead, mine, its
        if isinstance(mine, str):  # both refuse: their steps are over
            return None
        ahead += max(1, (ahead - _NEAR) // 20)
    return None


def _given(function: Callable[[int], Any], step: int) -> float | str:
    """What a function gives for a step; the name of the error where it gives none."""
    try:
        return float(function(step))
    except Exception as error:  # noqa: BLE001 - a table that ends, say
        return type(error).__name__


def _is_nan(given: float | str) -> bool:
    return isinstance(given, float) and math.isnan(given)


def _named(names: list[str]) -> str:
    return listed(map(plain, names), most=_MOST_NAMED)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout
