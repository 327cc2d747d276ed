"""Settings of a run that make no sense are refused before anything is made, with what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import SupportsIndex

from torch import nn

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.rules.scalar import whole_number
from trimtab.rules.schedule import Schedule


def at_least_one(value: SupportsIndex, *, name: str, unit: str) -> int:
    """`value` as a whole number of at least 1.

    Args:
        value: What the user gave; any integer type, no bool.
        name: The setting, as the user wrote it.
        unit: What it counts, for the message.

    Raises:
        UsageError: It is none.
    """
    return whole_number(value, name=name, least=1, expected=f"a whole number of {unit}, at least 1.")


def check_max_grad_norm(value: float | None) -> float | None:
    """The norm to clip to; None does not clip, infinity measures only. `UsageError` for anything else."""
    if value is None:
        return None
    try:
        norm = float(value)
    except (TypeError, ValueError, OverflowError):
        norm = math.nan
    if isinstance(value, (bool, str)) or not norm > 0:
        raise UsageError(
            f"max_grad_norm must be a positive number, found {value!r}: None does not clip, math.inf measures only."
        )
    return norm


def check_parts(*, model: object, optimizer: object) -> None:
    """Refuses a model that is no module and an optimizer that is none: the two are easily swapped."""
    if model is not None and not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, found {type(model).__name__}.")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise UsageError(f"optimizer must be a torch optimizer, found {type(optimizer).__name__}.")


def check_schedule(schedule: object) -> None:
    """Refuses what is no `Schedule`, as torch's own schedulers, which hold what they were loaded with."""
    if schedule is not None and not isinstance(schedule, Schedule):
        raise UsageError(
            f"schedule must be a trimtab.Schedule, found {type(schedule).__name__}: state what the rates are to be, as "
            'Schedule(form="cosine", lr=3e-4, num_steps=10_000, num_warmup_steps=200).'
        )


def check_guard(guard: object, *, model: nn.Module | None, where: str = "Run") -> None:
    """Refuses what is no `GuardConfig`, and a guard without the model on whose parameters it acts, values and all.

    Args:
        guard: The settings.
        model: The model.
        where: What is to be given the model, for the message.
    """
    if guard is None:
        return
    if not isinstance(guard, GuardConfig):
        raise UsageError(
            f'guard must be a trimtab.GuardConfig, found {type(guard).__name__}, such as GuardConfig(rule="robust").'
        )
    if not guard.enabled:
        return
    if model is None:
        raise UsageError(f"A guard acts on the parameters: pass model= (and optimizer=) to {where}.")
    refuse_without_values(model)


def refuse_without_values(model: nn.Module) -> None:
    """Refuses a model with a parameter on the meta device: what is compared with later would have no value either."""
    name = next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)
    if name is not None:
        raise UsageError(
            f"The model's parameter {name} is on the meta device and holds no values: call model.to_empty(device=...) "
            "and initialise or load them first, then make the guard or the Run."
        )


def refuse_uneven_inputs(model: nn.Module | None) -> None:
    """Refuses the `Join` of torch.distributed around a guard of several ranks: gloo ends the process in mid-training.

    `Join` stands in for the collectives of what it was given when a rank runs out of data, and not for the guard's sum.
    There is no public way to ask whether a model is joined (`_join_config`, seen in torch 2.6 to 2.13).
    """
    config = getattr(model, "_join_config", None)
    if config is not None and config.enable and not config.throw_on_early_termination:
        raise UsageError(
            "The model trains within torch.distributed.algorithms.Join, for ranks with different numbers of batches: a "
            "guard sums over the ranks at each micro-batch, and one that has run out would be missed. Give every rank "
            "as many batches (DistributedSampler, drop_last=True) and leave Join out, or pass guard=None."
        )


def saved_divisor(state: object) -> float | None:
    """The divisor in a saved state, None where none was set yet; `UsageError` for anything but a positive number."""
    value = state.get("divisor") if isinstance(state, Mapping) else None  # who reads the rest refuses what is no state
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UsageError(
            f"This state is damaged: divisor is {value!r}, expected a positive number or None. Load another checkpoint."
        )
    return float(value)
