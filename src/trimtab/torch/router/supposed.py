"""What of a model of one's own may be a router, by the names of its classes: to ask about, never to watch.

Enters: a model of which no router is known. Leaves: kinds, each with the names of its modules. Invariant: classes of
transformers itself are not guessed at, for those of its dense models are called gates and routers as well (ForgetGate,
ResidualGate, DensityRouter), and those with experts are known by `families`.
"""

from __future__ import annotations

import re
from typing import Final

from torch import nn

from trimtab.text import listed, plain
from trimtab.torch.module_names import bare_name, module_inside

_ROUTER: Final = re.compile(r"Router$|Top[kK0-9]+(Gate|Gating)$|(MoE|Moe|Expert|Experts|Switch)(Gate|Gating)$")
_GATE: Final = re.compile(r"(Gate|Gating)$|^Top[kK]$")
"""An LSTM's and an attention's are called so too: it is asked about where experts are beside it."""

_BLOCK: Final = re.compile(r"Mo[Ee](?![a-z])|MixtureOfExperts")


def supposed_routers(model: nn.Module) -> str:
    """Classes of a model that may be routers, as words; empty where there is none.

    Where none is called a router or a gate, the innermost blocks that are called a mixture of experts.

    Args:
        model: Bare, or inside of DDP, torch.compile, PEFT or fully_shard.

    Example:
        supposed_routers(model)  # "TopKGate (layers.0.moe.gate, layers.1.moe.gate)"
    """
    inside = module_inside(model)
    routers: dict[str, list[str]] = {}
    blocks: dict[str, str] = {}
    for name, module in inside.named_modules():
        kind = _own_class(module)
        if kind is None:
            continue
        is_gate = bool(_GATE.search(kind)) and _has_experts(inside.get_submodule(name.rpartition(".")[0]))
        if is_gate or _ROUTER.search(kind):
            routers.setdefault(kind, []).append(name)
        elif _BLOCK.search(kind):
            blocks[name] = kind
    if not routers:
        for name, kind in blocks.items():
            if not any(other.startswith(f"{name}.") or (not name and other) for other in blocks):
                routers.setdefault(kind, []).append(name)
    return "; ".join(
        f"{plain(kind)} ({listed([plain(bare_name(name)) or 'the model itself' for name in names], most=3)})"
        for kind, names in sorted(routers.items())
    )


def _own_class(module: nn.Module) -> str | None:
    """The name of its class, below what fully_shard or a parametrization made of that; None for one of a library."""
    own = next((kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.")), object)
    return None if own is object or own.__module__.startswith("transformers.") else own.__name__


def _has_experts(owner: nn.Module) -> bool:
    return any("expert" in name.lower() for name, _ in owner.named_children())
