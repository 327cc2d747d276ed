"""Where the routers of a model are and what each of them gives back, known by the names of classes.

Enters: a model, or what a user says its routers are. Leaves: a `Router` each, in the order of the model, which reads
what that gives back and knows where its experts' weights lie. Invariant: nothing is imported to know a class (a name is
compared), and what is not known to give logits is not taken.

Seen in transformers 5.24: 71 router classes of its models give (logits, weights, indices), Mixtral, Qwen2-MoE,
Qwen3-MoE, OLMoE, DeepSeek-V2 and V3, GPT-OSS and GLM-4-MoE among them; `Llama4Router` gives (scores, logits),
`DbrxRouter` logits alone. In 4.x the gate of Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE is a Linear of its block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.rules.scalar import whole_number
from trimtab.text import listed, plain
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.router.inputs import checked_top_k, wrong_indices, wrong_logits
from trimtab.torch.sharding import is_shard

Routers = Iterable[nn.Module] | Mapping[str, nn.Module]
"""Modules, or modules by name, whose output is logits (..., E) or a tuple that begins with them."""

_GIVES_LOGITS_FIRST: Final = re.compile(r"(Top[kK]Router|TokenChoiceRouter|HashRouter|MoEV1Gate|ZayaRouter)$")
_GIVES_LOGITS: Final = {"Llama4Router": 1, "DbrxRouter": 0}
"""At which place of their output logits are, of classes that give no experts."""

# A router's own class name ends so, whatever fully_shard or a parametrization put before it.
_NOT_READ: Final = {
    "SwitchTransformersTop1Router": "it gives a mask from which tokens beyond a capacity are gone",
    "NllbMoeTop2Router": "it gives a mask from which tokens beyond a capacity are gone",
    "JetMoeTopKGating": "it gives tokens sorted by expert",
    "Gemma4TextRouter": "it gives probabilities and no logits",
    "DiffusionGemmaTextRouter": "it gives probabilities and no logits",
}
_BLOCK_WITH_A_LINEAR_GATE: Final = re.compile(r"(SparseMoeBlock|MoE|MoeBlock|MoEBlock)$")
_FEWEST_OUTPUTS: Final = 3
"""In 4.x some classes of the same names give (scores, indices): no logits."""


class Read(NamedTuple):
    """What a router gave back.

    Attributes:
        logits: (..., E) floating point, before softmax, with their graph.
        indices: The chosen experts, k for each token; None: it does not say them.
    """

    logits: torch.Tensor
    indices: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """One router of a model, and how its output is read.

    Attributes:
        name: As in the model, without what wrappers put before it.
        module: The router itself.
        top_k: Experts a token is sent to; None: as many as its output names.
        num_experts: E; None: as many as its logits have columns.
        logits_at: At which place of a tuple its logits are.
        fewest_outputs: A shorter tuple than this is not what it is taken for.
        gives_logits_alone: Whether nothing that it gives says which experts were chosen.
        experts: The experts beside it, where they are found.
    """

    name: str
    module: nn.Module
    top_k: int | None = None
    num_experts: int | None = None
    logits_at: int = 0
    fewest_outputs: int = 1
    gives_logits_alone: bool = False
    experts: nn.Module | None = None

    def read(self, output: Any) -> Read | str:
        """Logits and chosen experts of one call; where there are none why, as what is said of "it".

        Args:
            output: What its module returned. Raises nothing, whatever it is, and waits for nothing.
        """
        logits, indices = output, None
        if isinstance(output, tuple | list):
            fewest = max(self.fewest_outputs, self.logits_at + 1)
            if len(output) < fewest:
                return f"it gave {len(output)} values, expected {fewest} or more, logits among them"
            logits = output[self.logits_at]
            indices = next((other for other in output if _is_integer(other)), None)
        wrong = wrong_logits(logits)
        if wrong is None and indices is not None:
            wrong = wrong_indices(indices, logits=logits)
        if wrong is not None:
            return f"it gave {wrong}"
        if is_shard(logits):
            return "its logits lie on several ranks"
        if logits.shape[-1] < 2:
            return "it gave logits of 1 expert, where there is nothing to choose"
        return Read(logits, indices)

    def expert_weights(self) -> list[torch.Tensor]:
        """(E, ...) each, as they are now; none where the experts are not found or lie in other tensors."""
        if self.experts is None:
            return []
        return [part for part in self.experts.parameters(recurse=False) if part.dim() == 3]


def find_routers(model: nn.Module) -> tuple[Router, ...]:
    """The routers of a Hugging Face mixture-of-experts model, in its order; empty where there is none that is known.

    Args:
        model: Bare, or inside of DDP, torch.compile, PEFT or fully_shard.
    """
    found = []
    inside = module_inside(model)
    for name, module in inside.named_modules():
        owner = name.rpartition(".")[0]
        router = _known(bare_name(name), module, owner=inside.get_submodule(owner) if name else None)
        if router is not None:
            found.append(router)
    return tuple(found)


def unread_routers(model: nn.Module) -> tuple[str, ...]:
    """What of a model looks like a router and is not taken, a sentence each kind."""
    found: dict[str, list[str]] = {}
    for name, module in module_inside(model).named_modules():
        for kind in _NOT_READ:
            if type(module).__name__.endswith(kind):
                found.setdefault(kind, []).append(plain(bare_name(name)))
    return tuple(
        f"{listed(names, most=3)} ({kind}) is not read: {_NOT_READ[kind]}" for kind, names in sorted(found.items())
    )


def named_routers(
    model: nn.Module, routers: Callable[[nn.Module], Routers] | Routers, *, top_k: int | None
) -> tuple[Router, ...]:
    """The routers that a user names.

    Args:
        model: The model they are in; bare or wrapped.
        routers: Modules, or modules by name; or a function of the bare model that gives them.
        top_k: Experts a token is sent to, of routers that do not say it by an attribute `top_k`.

    Raises:
        UsageError: Something else than modules was given or one twice; `top_k` is no number of a router's experts.
    """
    inside = module_inside(model)
    given = routers(inside) if callable(routers) and not isinstance(routers, nn.Module) else routers
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList | nn.ModuleDict):
        given = [given]
    if not isinstance(given, Iterable):
        raise UsageError(
            f"routers gave {type(given).__name__}, expected the router modules of the model: an iterable of them, a "
            "mapping from names to them, or a function of the model that gives either."
        )
    names = {id(module): name for name, module in inside.named_modules()}
    named = list(given.items()) if isinstance(given, Mapping | nn.ModuleDict) else [(None, module) for module in given]
    found: dict[int, Router] = {}
    for place, (name, module) in enumerate(named):
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"routers names {type(module).__name__} at place {place}, expected a torch.nn.Module of the model. A "
                "router that is no module is watched by RouterWatch.tap(logits, layer=...), with routers=()."
            )
        if id(module) in found:
            raise UsageError(
                f"routers names {plain(found[id(module)].name)!r} twice: each call of it would be counted twice."
            )
        inner = names.get(id(module))
        owner = inside.get_submodule(inner.rpartition(".")[0]) if inner else None
        told = name if name is not None else bare_name(inner or f"router {place}")
        found[id(module)] = _told(str(told), module, owner=owner, top_k=top_k)
    if len({router.name for router in found.values()}) != len(found):
        raise UsageError("Two of the routers have the same name: pass a mapping from names to modules.")
    return tuple(found.values())


def _told(name: str, module: nn.Module, *, owner: nn.Module | None, top_k: int | None) -> Router:
    if type(module).__module__.startswith("transformers."):
        known = _known(name, module, owner=owner)
        if known is not None:
            return known
    last = _last_linear(module)
    num_experts = last.out_features if last is not None else _number(module, "num_experts")
    k = _number(module, "top_k") or (None if top_k is None else checked_top_k(top_k, num_experts=num_experts))
    return Router(
        name=name,
        module=module,
        top_k=k,
        num_experts=num_experts,
        gives_logits_alone=last is not None,
        experts=_experts_of(owner),
    )


def refuse_unknown_top_k(routers: Iterable[Router]) -> None:
    """Refuses, with `UsageError`, routers of which is known already that nobody says how many experts they choose."""
    unknown = [plain(router.name) for router in routers if router.gives_logits_alone and router.top_k is None]
    if unknown:
        raise UsageError(
            f"{listed(unknown, most=3)} gives logits alone and has no attribute top_k, so nobody says how many experts "
            "a token is sent to: pass top_k=."
        )


def _last_linear(module: nn.Module) -> nn.Linear | None:
    """The Linear whose output is that of a module: itself, or the end of a Sequential."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module if isinstance(module, nn.Linear) else None


def _known(name: str, module: nn.Module, *, owner: nn.Module | None) -> Router | None:
    kind = type(module).__name__
    experts = _experts_of(owner)
    top_k, num_experts = _number(module, "top_k"), _number(module, "num_experts")
    alone = next((place for suffix, place in _GIVES_LOGITS.items() if kind.endswith(suffix)), None)
    if alone is not None:
        top_k = top_k or _number(owner, "top_k")
        return Router(name=name, module=module, top_k=top_k, logits_at=alone, experts=experts) if top_k else None
    if _GIVES_LOGITS_FIRST.search(kind) and top_k is not None and num_experts is not None:
        return Router(
            name=name, module=module, top_k=top_k, fewest_outputs=_FEWEST_OUTPUTS, experts=experts
        )  # E is what the logits say: some have a column for "no expert"
    is_gate = isinstance(module, nn.Linear) and getattr(owner, "gate", None) is module
    if is_gate and _BLOCK_WITH_A_LINEAR_GATE.search(type(owner).__name__):
        num_experts, top_k = _number(owner, "num_experts"), _number(owner, "top_k")
        if top_k is not None and num_experts == module.out_features:
            return Router(name=name, module=module, top_k=top_k, num_experts=num_experts, experts=experts)
    return None


def _experts_of(owner: nn.Module | None) -> nn.Module | None:
    experts = getattr(owner, "experts", None)
    return experts if isinstance(experts, nn.Module) else None


def _number(module: nn.Module | None, name: str) -> int | None:
    try:
        return whole_number(getattr(module, name, None), name=name, least=1, expected="a number of experts.")
    except UsageError:
        return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)
