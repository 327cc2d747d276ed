"""What differs between a live training and the same one as a checkpoint has it: weights, moments, rates, schedule.

Enters: the live objects, and objects of the same make that a checkpoint was loaded into. Leaves: a sentence for each
place that differs, by the names of the module inside. Invariants: nothing is changed, but that `fully_shard` shows its
shards (as at every save); no collective of ours is called, each rank compares what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.text import plain
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.naming import weights_of
from trimtab.torch.optimizer_names import NamedState, named_state
from trimtab.torch.placement import placed
from trimtab.torch.state_differences import differences
from trimtab.torch.unsaved_differences import function_differences, model_differences

_ABSENT: Final = object()


def weight_differences(live: nn.Module, loaded: nn.Module, *, rank: int) -> Iterator[str]:
    """What differs in the state of a model (weights, buffers, extra states), and in what no state holds of it.

    Buffers that DistributedDataParallel copies from rank 0 before every forward are compared on rank 0 alone.

    Args:
        live: The model that trains, wrapped or not.
        loaded: The other one, wrapped in whatever way.
        rank: This process's place among the ranks.
    """
    here, there = weights_of(live), weights_of(loaded)
    copied = _buffers_of_first(live) if rank else frozenset()
    seen = set()
    for name, value in here.items():
        if name not in there:
            yield f"{plain(name)} of the model was not loaded: what was built does not have it"
            continue
        both = _memory(value), _memory(there[name])
        if name not in copied and (None in both or both not in seen):
            yield from differences(value, there[name], where=plain(name))
        seen.add(both)  # tied weights are one, where they are tied on both sides
    for name in there.keys() - here.keys():
        yield f"{plain(name)} was loaded, and the model that trains does not have it"
    yield from model_differences(live, loaded, without=copied)


def moment_differences(
    live: torch.optim.Optimizer, loaded: torch.optim.Optimizer, *, live_model: nn.Module, loaded_model: nn.Module
) -> Iterator[str]:
    """What differs between two optimizers: their groups' options (`lr`, `initial_lr`, ...), and what they keep.

    Args:
        live: That of the training.
        loaded: The other one.
        live_model: The model that trains; its shards are shown by now.
        loaded_model: The other one; likewise.
    """
    here, there = named_state(live, live_model), named_state(loaded, loaded_model)
    if tuple(map(set, here.groups)) != tuple(map(set, there.groups)):
        yield f"the optimizer has {_groups(here)} in the training and {_groups(there)} in what was built"
        return
    for number, (options, others) in enumerate(zip(here.options, there.options, strict=True)):
        yield from _entries(options, others, where=f"of parameter group {number}")
    for name in here.state.keys() | there.state.keys() if here.state.keys() != there.state.keys() else ():
        if name not in here.state or name not in there.state:
            has = "the training" if name in here.state else "what was loaded"
            yield f"the optimizer's state of {plain(name)} is in {has} alone"
    for name, values in here.state.items():
        if name in there.state:
            yield from _entries(values, there.state[name], where=f"of {plain(name)}")
    yield from _entries(here.rest, there.rest, where="of the optimizer")


def state_differences(live: Any, loaded: Any, *, name: str) -> Iterator[str]:
    """What differs between two schedulers, their states and functions, or two gradient scalers; nested ones too.

    Args:
        live: That of the training.
        loaded: The other one.
        name: What to call it.
    """
    here, there = live.state_dict(), loaded.state_dict()
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        yield from _entries(here, there, where=f"of the {name}")
    else:
        yield from differences(here, there, where=f"the state of the {name}")
    yield from function_differences(live, loaded)


def _entries(here: Mapping[Any, Any], there: Mapping[Any, Any], *, where: str) -> Iterator[str]:
    for key in (*here, *(key for key in there if key not in here)):
        one, other = here.get(key, _ABSENT), there.get(key, _ABSENT)
        named = f"{plain(str(key))} {where}"
        if one is _ABSENT or other is _ABSENT:
            yield f"{named} is in {'what was loaded' if one is _ABSENT else 'the training'} alone"
        else:
            yield from differences(one, other, where=named)


def _groups(state: NamedState) -> str:
    return f"{len(state.groups)} parameter groups of {', '.join(str(len(group)) for group in state.groups)}"


def _memory(value: object) -> tuple[Any, ...] | None:
    """Where a tensor lies; None for what has no place of its own."""
    local = placed(value).local if isinstance(value, torch.Tensor) else None
    if local is None or local.layout is not torch.strided or local.is_meta or not local.numel():
        return None
    return local.device, local.data_ptr(), local.shape, local.stride(), local.dtype


def _buffers_of_first(model: nn.Module) -> frozenset[str]:
    """Names of the buffers that rank 0 hands to all others before each forward."""
    hands = any(isinstance(module, DistributedDataParallel) and module.broadcast_buffers for module in model.modules())
    inside = module_inside(model)
    return frozenset(bare_name(name) for name, _ in inside.named_buffers()) if hands else frozenset()
