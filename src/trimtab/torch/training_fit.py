"""Whether an optimizer and a scheduler could go on with a saved state, before either has seen it.

Enters: the states, which may be a stranger's, and the objects. Leaves: nothing, or a `CheckpointError` that names the
entry, what it is and what was expected. Invariants: nothing is changed; a value is looked at by its type first, and no
more of it than that needs.

`load_state_dict` of torch takes nearly anything, and the next step fails on it, or goes on wrongly. Of optimizers that
are not torch's nothing is known but the kinds of their options.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from trimtab.errors import CheckpointError
from trimtab.text import plain
from trimtab.torch.lr import inside_of
from trimtab.torch.lr_schedules import unwrapped
from trimtab.torch.optimizer_names import PARAMS, NamedState, parameters_by_name
from trimtab.torch.sharded_index import SavedTensor

_ADAM: Final = ("step", "exp_avg", "exp_avg_sq")
_KEPT: Final[dict[type, tuple[str, ...]]] = {
    optim.ASGD: ("step", "eta", "mu", "ax"),
    optim.Adadelta: ("step", "square_avg", "acc_delta"),
    optim.Adagrad: ("step", "sum"),
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.Adamax: ("step", "exp_avg", "exp_inf"),
    optim.NAdam: (*_ADAM, "mu_product"),
    optim.RAdam: _ADAM,
    optim.RMSprop: ("step", "square_avg"),
    optim.Rprop: ("step", "prev", "step_size"),
    optim.SGD: (),
    optim.SparseAdam: _ADAM,
}
"""What each cannot step without, once it has stepped; a subclass may keep something else."""

_KEPT_WHERE_SET: Final = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg"}
_BUFFER: Final = "momentum_buffer"
_COUNTS: Final = frozenset(("step", "eta", "mu", "mu_product"))
"""Numbers; all else has the shape of its parameter."""

_RATES: Final = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_PLACES: Final = ("last_epoch", "_step_count")
_LISTS_OF_RATES: Final = ("base_lrs", "_last_lr")

_INSTEAD: Final = "It was changed, or another version saved it; pick another one."


def refuse_unlike_state(
    saved: NamedState,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    where: str,
    tensors: Mapping[tuple[str, str], SavedTensor] | None = None,
) -> None:
    """Refuses the state of an optimizer with which its next step would fail.

    Args:
        saved: By name, in groups that were found to be those of the optimizer.
        optimizer: The optimizer, of the class that saved it.
        model: Its model; under `fully_shard` it must show its shards.
        where: What to call the checkpoint in a message.
        tensors: What lies in shards, by the parameter's name and the optimizer's key.

    Raises:
        CheckpointError: An option or a moment is missing, or none that could be one.
    """
    for number, (options, group) in enumerate(zip(saved.options, optimizer.param_groups, strict=True)):
        _refuse_options(options, group, where=f"{where}: parameter group {number} of its optimizer")
    kept = _KEPT.get(type(inside_of(optimizer)))
    if kept is None:
        return
    moments: dict[str, dict[str, Any]] = {name: dict(values) for name, values in saved.state.items()}
    for (name, key), tensor in (tensors or {}).items():
        moments[name][key] = tensor
    for options, parameters in zip(saved.options, parameters_by_name(optimizer, model), strict=True):
        more = [key for option, key in _KEPT_WHERE_SET.items() if options.get(option) is True]
        for name, parameter in parameters.items():
            held = moments.get(name)
            if held:
                _refuse_moments(
                    held, (*kept, *more), parameter, where=f"{where}: its optimizer's state of {plain(name)}"
                )


def refuse_unlike_schedule(saved: object, scheduler: Any, *, where: str) -> None:
    """Refuses the state of one of torch's schedulers that would put something else in the place of its own.

    Args:
        saved: What its `state_dict` gave.
        scheduler: The scheduler, of the class that saved it; one of somebody else's class sees to its state itself.
        where: What to call the checkpoint in a message.

    Raises:
        CheckpointError: An entry is missing, or none that could be one.
    """
    scheduler = unwrapped(scheduler)
    if not isinstance(scheduler, LRScheduler):
        return
    where = f"{where}: the state of its {type(scheduler).__name__}"
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{where} is a {type(saved).__name__}, expected a mapping. {_INSTEAD}")
    here = scheduler.state_dict()
    for key in saved:
        # The state becomes its attributes: `step` would take the place of the method.
        if type(key) is not str or (key not in here and hasattr(scheduler, key)):
            raise CheckpointError(
                f"{where} holds {plain(key) if type(key) is str else f'a {type(key).__name__}'}, which is no part of "
                f"one. {_INSTEAD}"
            )
    for key in (*_PLACES, *_LISTS_OF_RATES):
        if key not in here:
            continue
        value: Any = saved.get(key)
        if key in _PLACES:
            fits, expected = _is_finite(value), "a finite number"
        else:
            fits = isinstance(value, list | tuple) and len(value) == len(here[key]) and all(map(_is_finite, value))
            expected = f"{len(here[key])} finite numbers"
        if not fits:
            raise CheckpointError(f"{where} has {_told(value)} for {key}, expected {expected}. {_INSTEAD}")
    inner = getattr(scheduler, "_schedulers", None)
    if inner is None:
        return
    states = saved.get("_schedulers")
    if not isinstance(states, list | tuple) or len(states) != len(inner):
        raise CheckpointError(f"{where} does not hold those of its {len(inner)} schedulers. {_INSTEAD}")
    for state, one in zip(states, inner, strict=True):
        refuse_unlike_schedule(state, one, where=where)


def _refuse_options(saved: Mapping[str, Any], here: Mapping[str, Any], *, where: str) -> None:
    for name in _RATES:
        if (name in saved or name == "lr") and not _is_finite(saved.get(name)):
            raise CheckpointError(
                f"{where} has {_told(saved.get(name))} for {name}, expected a finite number. {_INSTEAD}"
            )
    for name, value in here.items():
        if name != PARAMS and name in saved and not _could_be(saved[name], value):
            raise CheckpointError(
                f"{where} has {_told(saved[name])} for {plain(str(name))}, expected something like "
                f"{plain(repr(value))}. {_INSTEAD}"
            )


def _could_be(saved: object, here: object) -> bool:
    """Whether an option may stand in the place of another; what is no plain one here is not judged."""
    if _is_number(here):
        return _is_number(saved)
    if here is None or isinstance(here, bool | str):
        return saved is None or isinstance(saved, bool | str) or _is_number(saved)
    if isinstance(here, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(here):
            return False
        return all(_could_be(one, other) for one, other in zip(saved, here, strict=True))
    return True


def _refuse_moments(held: Mapping[str, Any], kept: tuple[str, ...], parameter: torch.Tensor, *, where: str) -> None:
    missing = [key for key in kept if key not in held]
    if missing:
        raise CheckpointError(f"{where} lacks {', '.join(missing)}. {_INSTEAD}")
    for key in (*kept, _BUFFER):
        value = held.get(key)
        if key == _BUFFER and value is None:
            continue
        if key in _COUNTS:
            if not _is_finite(value):
                raise CheckpointError(f"{where} has {_told(value)} for {key}, expected a finite number. {_INSTEAD}")
        elif not isinstance(value, torch.Tensor | SavedTensor) or tuple(value.shape) != tuple(parameter.shape):
            raise CheckpointError(
                f"{where} has {_told(value)} for {key}, expected a tensor of shape {tuple(parameter.shape)}. {_INSTEAD}"
            )
        elif _is_real(value.dtype) != _is_real(parameter.dtype) or (
            isinstance(value, torch.Tensor) and (value.is_meta or value.layout is not torch.strided)
        ):
            raise CheckpointError(
                f"{where} has {_told(value)} for {key}, expected one of values like those of its parameter "
                f"({parameter.dtype}). {_INSTEAD}"
            )


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_meta and not value.is_complex()
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(float(value))  # type: ignore[arg-type]
    except OverflowError:  # an integer of hundreds of digits
        return False


def _told(value: object) -> str:
    """A stranger's value in few words: no more of it is looked at than its type, its shape or the number."""
    if isinstance(value, torch.Tensor | SavedTensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if value is None or type(value) in (bool, float):
        return repr(value)
    return f"a {type(value).__name__}"
