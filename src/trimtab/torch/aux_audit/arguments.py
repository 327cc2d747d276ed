"""The arguments of an audit: what makes no sense is refused before the loop's loss is called.

Enters: what the user gave. Leaves: the parameters that gradients are taken by, k, or a `UsageError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from torch import nn

from trimtab.errors import UsageError
from trimtab.rules.scalar import whole_number
from trimtab.text import listed, plain
from trimtab.torch.aux_audit.forms import OverLayers
from trimtab.torch.module_names import module_inside
from trimtab.torch.router.families import Router
from trimtab.torch.router.inputs import checked_top_k
from trimtab.torch.router.losses import Convention
from trimtab.torch.sharding import is_shard


def trained_parameters(
    model: nn.Module, given: Sequence[nn.Parameter] | None, *, routers: Sequence[Router]
) -> list[nn.Parameter]:
    """What gradients are taken by."""
    if given is None:
        of_routers = [parameter for router in routers for parameter in router.module.parameters()]
        given = of_routers or list(module_inside(model).parameters())
    trained = list({id(parameter): parameter for parameter in given if parameter.requires_grad}.values())
    if not trained:
        raise UsageError(
            "No parameter of the routers requires a gradient, so no term of the loss reaches them: pass parameters= "
            "that the loss trains, or unfreeze the routers."
        )
    if any(is_shard(parameter) for parameter in trained):
        raise UsageError(
            "The routers' parameters are sharded, of which this rank sees a part: audit the model before fully_shard, "
            "at small size; the weights of a loss do not depend on its size."
        )
    return trained


def top_k_of(routers: Sequence[Router], given: int | None) -> int:
    """Experts a token is sent to, of a load balance: as given, or as all routers say."""
    if given is not None:
        return checked_top_k(given)
    found = {router.top_k for router in routers}
    top_k = found.pop() if len(found) == 1 else None
    if top_k is None:
        raise UsageError("The load balance needs top_k, and the routers do not say one: pass top_k=.")
    return top_k


def refuse_odd(
    *,
    micro_batches: Sequence[Any],
    weights: Mapping[str, float],
    accumulation: int,
    convention: str,
    over_layers: str,
    named: Iterable[str],
) -> None:
    """Refuses arguments that make no sense."""
    if not micro_batches:
        raise UsageError("micro_batches is empty: pass some that the loop would train on.")
    if not weights:
        raise UsageError('weights is empty: say what each term is meant to weigh, for example {"z": 1e-4}.')
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UsageError(f"weights has {weight!r} for {plain(name)}, expected a finite number.")
    unknown = [plain(name) for name in named if name not in weights]
    if unknown:
        raise UsageError(
            f"weights does not name {listed(unknown)}: state what it is meant to weigh, 0 where it is off."
        )
    whole_number(accumulation, name="accumulation", least=1, expected="a whole number of micro-batches, 1 or more.")
    for name, found, known in (
        ("convention", convention, get_args(Convention)),
        ("over_layers", over_layers, get_args(OverLayers)),
    ):
        if found not in known:
            raise UsageError(f"{name} is {found!r}, expected one of {listed(map(repr, known))}.")
