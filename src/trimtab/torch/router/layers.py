"""`RouterLayers`: what routers gave back is held, and summed for many calls and all layers at once.

Enters: logits and chosen experts of one layer after another. Leaves: sums on the device (`router_sums`). Invariant: no
more than some megabytes are held; nothing is raised and nothing waited for; what cannot be read is left
out and said so.

Shapes: T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from trimtab.text import plain
from trimtab.torch.router.families import Router
from trimtab.torch.router.sums import LayerSums
from trimtab.torch.sharding import is_shard

_MOST_HELD: Final = 2**18
"""Logits that are held before their sums are made: 1 MB of float32.

The sums are some forty small operations, which cost a small model 2 % of its step if each forward has its own; a large
one holds as many after one forward.
"""

_MOST_SUMMED: Final = 2**22
"""Logits whose sums are made at once: five tensors of their size live meanwhile, 80 MB of float32."""


class Tapped:
    """One layer: a router module, or logits that were handed over.

    Attributes:
        name: Its name.
        router: How a module's output is read; None for logits that were handed over.
        top_k: Experts a token is sent to, as soon as it is known.
        sums: Where its sums are, as soon as E is known.
        row: Its row there.
        is_left_out: Whether what it gives back cannot be read.
    """

    __slots__ = ("is_left_out", "name", "router", "row", "sums", "top_k")

    def __init__(self, name: str, *, router: Router | None, top_k: int | None) -> None:
        """Nothing was seen of it yet."""
        self.name = name
        self.router = router
        self.top_k = top_k
        self.sums: LayerSums | None = None
        self.row = 0
        self.is_left_out = False


class Held(NamedTuple):
    """What one call of a router gave back.

    Attributes:
        layer: Whose it is, by its place.
        logits: (..., E), detached.
        indices: As many experts for each token; None: those of the largest logits.
        mask: (T,) bool, which tokens are real; None: all.
        version: How often the logits had been written to; -1: nobody looked.
    """

    layer: int
    logits: torch.Tensor
    indices: torch.Tensor | None
    mask: torch.Tensor | None
    version: int


class RouterLayers:
    """The layers of one watch, what is held of them, and their sums since these were last taken.

    Attributes:
        all: In the order of the model, then of the first call.
        notes: What could not be measured and why, by cause.
        is_compiled: Whether the last call was one that torch.compile traced.
    """

    def __init__(self, routers: Sequence[Router]) -> None:
        """Knows routers that are modules."""
        self.all = [Tapped(router.name, router=router, top_k=router.top_k) for router in routers]
        self.notes: dict[str, str] = {}
        self.is_compiled = False
        self._sums: dict[tuple[torch.device, int], LayerSums] = {}
        self._held: list[Held] = []
        self._num_held = 0

    def place_of(self, name: str, *, top_k: int | None) -> int:
        """The place of a layer that is no module; it is made when it is first named."""
        for place, layer in enumerate(self.all):
            if layer.name == name:
                return place
        self.all.append(Tapped(name, router=None, top_k=top_k))
        return len(self.all) - 1

    @property
    def num_held(self) -> int:
        """Calls that are held."""
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether so much is held of one forward that its sums should be made before it ends."""
        return self._num_held >= _MOST_SUMMED

    def drop_held(self, begin: int) -> None:
        """Forgets the calls that are held, from one on."""
        del self._held[begin:]
        self._num_held = sum(held.logits.numel() for held in self._held)

    def hold(self, place: int, logits: Any, *, indices: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Keeps what a router gave back.

        Args:
            place: Which layer.
            logits: (..., E); anything else leaves the layer out from now on.
            indices: The chosen experts, the same number for each token; None: those of the largest logits.
            mask: (T,) bool, which tokens are real; None: all.
        """
        layer = self.all[place]
        wrong = _unreadable(logits, indices)
        if wrong is not None:
            layer.is_left_out = True
            self.notes[layer.name] = f"{plain(layer.name)} is not read: {wrong}"
            return
        self.is_compiled = torch.compiler.is_compiling()
        version = -1 if self.is_compiled else logits._version
        chosen = None if indices is None else indices.detach()
        self._held.append(Held(place, logits.detach(), chosen, mask, version))
        if not self.is_compiled:  # a number that changes would have the forward compiled anew
            self._num_held += logits.numel()

    def make_sums_if_many(self) -> None:
        """Adds what is held as soon as it is much; always where the model is compiled, which may use the memory of what
        it gave back again in its next forward.
        """
        if self.is_compiled or self._num_held >= _MOST_HELD:
            self.make_sums()

    def make_sums(self) -> None:
        """Adds what is held, layers at once that saw the same tokens."""
        held, self._held, self._num_held = self._held, [], 0
        calls: dict[int, list[Held]] = {}
        for one in held:
            if one.logits.numel():
                calls.setdefault(one.layer, []).append(self._flat(one))
        alike: dict[tuple[Any, ...], list[int]] = {}
        for place, own in calls.items():
            first = own[0].logits
            tokens = tuple((call.logits.shape, call.logits.dtype, call.indices is None, id(call.mask)) for call in own)
            alike.setdefault((first.device, self.all[place].top_k, *tokens), []).append(place)
        for group in alike.values():
            size = sum(call.logits.numel() for call in calls[group[0]])
            most = max(1, _MOST_SUMMED // size)
            for begin in range(0, len(group), most):
                self._add({place: calls[place] for place in group[begin : begin + most]})

    def _flat(self, held: Held) -> Held:
        """The call as (T, E) and (T, k), its mask where it fits."""
        layer = self.all[held.layer]
        if held.version >= 0 and held.logits._version != held.version:
            self.notes[f"changed {layer.name}"] = (
                f"the logits of {plain(layer.name)} were changed in place after the router returned them; the figures "
                "are of what they were changed to"
            )
        logits = held.logits.flatten(0, -2)
        num_tokens = logits.shape[0]
        indices, mask = held.indices, held.mask
        if indices is not None:
            indices = indices.reshape(num_tokens, -1)
            layer.top_k = indices.shape[1]
        elif layer.top_k is None:
            self.notes[f"top_k {layer.name}"] = (
                f"nobody says how many experts {plain(layer.name)} sends a token to, so none are counted: pass top_k= "
                "to RouterWatch, or give the router an attribute top_k"
            )
        if mask is not None and mask.shape[0] != num_tokens:
            self.notes["mask"] = (
                f"the attention mask has {mask.shape[0]} tokens and {plain(layer.name)} saw {num_tokens}: padding, if "
                "any, is counted there"
            )
            mask = None
        self._find_room(layer, logits)
        return Held(held.layer, logits, indices, mask, held.version)

    def _add(self, calls: Mapping[int, Sequence[Held]]) -> None:
        layers = [self.all[place] for place in calls]
        sums = layers[0].sums
        assert sums is not None
        shared = next(iter(calls.values()))
        indices = None
        if shared[0].indices is not None:
            indices = [_in_one([call.indices for call in own if call.indices is not None]) for own in calls.values()]
        sums.add(
            tuple(layer.row for layer in layers),
            [_in_one([call.logits for call in own]) for own in calls.values()],
            indices=indices,
            top_k=layers[0].top_k,
            mask=_mask_of(shared),
        )

    def _find_room(self, layer: Tapped, logits: torch.Tensor) -> None:
        num_experts = logits.shape[1]
        if layer.sums is not None and layer.sums.device == logits.device and layer.sums.num_experts == num_experts:
            return
        kind = (logits.device, num_experts)
        if kind not in self._sums:
            self._sums[kind] = LayerSums(num_experts=num_experts, device=logits.device)
        layer.sums = self._sums[kind]
        layer.row = layer.sums.add_layer()

    def taken(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """By layer: its sums and counts (5 + E + E + 2,), and its largest absolute logit, 0-d; all begin again at 0.

        A layer that no call was seen of is not in it.
        """
        taken = {kind: sums.taken() for kind, sums in self._sums.items()}
        given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for place, layer in enumerate(self.all):
            if layer.sums is not None:
                sums, counts, peaks = taken[layer.sums.device, layer.sums.num_experts]
                given[place] = torch.cat([sums[layer.row], counts[layer.row]]), peaks[layer.row]
        return given


def _mask_of(calls: Sequence[Held]) -> torch.Tensor | None:
    """Which tokens of some calls of a layer are real; None: all."""
    if all(call.mask is None for call in calls):
        return None
    masks = []
    for call in calls:
        device, num_tokens = call.logits.device, call.logits.shape[0]
        everything = torch.ones(num_tokens, dtype=torch.bool, device=device) if call.mask is None else call.mask
        masks.append(everything.to(device, non_blocking=True))
    return _in_one(masks)


def _in_one(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _unreadable(logits: Any, indices: torch.Tensor | None) -> str | None:
    """Why a router's output cannot be read; None: it can."""
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        found = f"a tensor of {logits.dtype}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        return f"it gave {found}, expected logits (..., experts), or a tuple that begins with them"
    if logits.dim() < 2 or logits.shape[-1] < 2:
        return f"its logits have shape {tuple(logits.shape)}, expected (..., experts)"
    if is_shard(logits):
        return "its logits lie on several ranks"
    num_tokens = logits.numel() // logits.shape[-1]
    if indices is not None and num_tokens and indices.numel() % num_tokens:
        return f"it gave {indices.numel()} chosen experts for {num_tokens} tokens"
    return None
