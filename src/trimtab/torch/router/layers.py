"""`RouterLayers`: what routers gave back is held, and summed for many calls and all layers at once.

Enters: logits and chosen experts of one layer after another, as `Router.read` gives them. Leaves: sums on the device
(`LayerSums`). Invariant: no more than some megabytes are held; nothing is raised and nothing waited for; what cannot be
measured is a note.

Shapes: T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from trimtab.text import plain
from trimtab.torch.router.families import Read, Router
from trimtab.torch.router.notes import Notes
from trimtab.torch.router.sums import LayerSums

_MOST_HELD: Final = 2**18
"""Logits that are held before their sums are made: 1 MB of float32.

The sums are some forty small operations, which cost a small model 2 % of its step if each forward has its own; a large
one holds as many after one forward.
"""

# Counts of the largest logits alone would be a guess: k - 1 of every k choices are not in them, so an expert that is
# always second would be dead, and a router whose first choice is common to all tokens collapsed.
_NO_TOP_K: Final = (
    "nobody says how many experts it sends a token to, so none are counted, and no collapse, dead expert or load "
    "balance of it can be seen; pass top_k= to RouterWatch, or give the router an attribute top_k"
)

_MOST_CALLS: Final = 1024
"""Calls that are held before their sums are made, however small: each is a kilobyte of objects."""

_MOST_TOLD: Final = 160  # characters of an error

_MOST_SUMMED: Final = 2**22
"""Logits whose sums are made at once: five tensors of their size live meanwhile, 80 MB of float32."""


class Tapped:
    """One layer: a router module, or logits that were handed over.

    Attributes:
        name: Its name.
        router: How a module's output is read; None for logits that were handed over.
        top_k: Experts a token is sent to, where a call does not say it by its indices.
        num_experts: E, as soon as a call was seen.
        rooms: By device, where its sums are and its row there; more than one of a model that was moved.
        left_out_for: Why what it gives back cannot be read; None: it can.
    """

    __slots__ = ("left_out_for", "name", "num_experts", "rooms", "router", "top_k")

    def __init__(self, name: str, *, router: Router | None, top_k: int | None) -> None:
        """Nothing was seen of it yet."""
        self.name = name
        self.router = router
        self.top_k = top_k
        self.num_experts: int | None = None
        self.rooms: dict[torch.device, tuple[LayerSums, int]] = {}
        self.left_out_for: str | None = None


class Held(NamedTuple):
    """What one call of a router gave back.

    Attributes:
        layer: Whose it is, by its place.
        logits: (..., E), detached.
        indices: As many experts for each token; None: the `top_k` of the largest logits.
        mask: (T,) bool, which tokens are real; None: all.
        version: How often the logits had been written to; -1: it does not matter.
        top_k: Experts a token was sent to; None: nobody says it.
    """

    layer: int
    logits: torch.Tensor
    indices: torch.Tensor | None
    mask: torch.Tensor | None
    version: int
    top_k: int | None


class RouterLayers:
    """The layers of one watch, what is held of them, and their sums since these were last taken.

    Attributes:
        all: In the order of the model, then of the first call.
        notes: What could not be measured and why.
        is_compiled: Whether the last call was one that torch.compile traced.
        has_lost: Whether something that was to be counted is in no sum.
    """

    def __init__(self, routers: Sequence[Router]) -> None:
        """Knows routers that are modules."""
        self.all = [Tapped(router.name, router=router, top_k=router.top_k) for router in routers]
        self.notes = Notes()
        self.is_compiled = False
        self.has_lost = False
        self._errors: dict[str, str] = {}
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

    def hold(self, place: int, read: Read, *, mask: torch.Tensor | None) -> None:
        """Keeps what a router gave back.

        Args:
            place: Which layer.
            read: Logits, and the chosen experts; without these, those of the largest logits.
            mask: (T,) bool, which tokens are real; None: all.
        """
        logits, indices = read.logits.detach(), None if read.indices is None else read.indices.detach()
        top_k = self.all[place].top_k if indices is None else None
        self.is_compiled = torch.compiler.is_compiling()
        if self.is_compiled:
            self._held.append(Held(place, logits, indices, mask, -1, top_k))
            return
        own = _apart(logits)
        version = logits._version if own is logits else -1
        self._held.append(Held(place, own, None if indices is None else _apart(indices), mask, version, top_k))
        # Not where it is compiled: a number that changes has it compiled anew. A copy counts as what it was a part of:
        # a small one that is kept in the place of something large has the heap grow by the large one.
        self._num_held += logits.untyped_storage().nbytes() // logits.element_size()

    def make_sums_if_many(self) -> None:
        """Adds what is held as soon as it is much; always where the model is compiled, which may use the memory of what
        it gave back again in its next forward.
        """
        if self.is_compiled or self._num_held >= _MOST_HELD or len(self._held) >= _MOST_CALLS:
            self.make_sums()

    def make_sums(self) -> None:
        """Adds what is held, layers at once that saw the same tokens."""
        held, self._held, self._num_held = self._held, [], 0
        if torch.compiler.is_compiling():
            self._add_all(held)
            return
        try:
            self._add_all(held)
        except Exception as error:  # noqa: BLE001 - memory that ran out must not cost the run
            self.go_without(error)

    def go_without(self, error: Exception) -> None:
        """Takes note that something was lost."""
        self.has_lost = True
        kind = type(error).__name__
        # The first of its kind speaks for all: a cause that lasts is one sentence.
        told = self._errors.setdefault(kind, plain(str(error))[:_MOST_TOLD])
        self.notes.add(f"what some calls gave could not be summed and is in no figure ({kind}: {told})")

    def _add_all(self, held: Sequence[Held]) -> None:
        calls: dict[tuple[Any, ...], list[Held]] = {}
        for one in held:
            if one.logits.numel() and self._fits(one):
                call = self._flat(one)
                x = call.logits
                kind = call.top_k, call.indices is None, x.device, x.dtype, x.shape[1]
                calls.setdefault((call.layer, *kind), []).append(call)
        groups: dict[tuple[Any, ...], list[list[Held]]] = {}
        for (_, *alike), own in calls.items():
            tokens = tuple((call.logits.shape[0], id(call.mask)) for call in own)
            groups.setdefault((*alike, tokens), []).append(own)
        for group in groups.values():
            most = max(1, _MOST_SUMMED // sum(call.logits.numel() for call in group[0]))
            for begin in range(0, len(group), most):
                self._add(group[begin : begin + most])

    def _fits(self, held: Held) -> bool:
        """Whether a call has as many experts as those before it."""
        layer, num_experts = self.all[held.layer], held.logits.shape[-1]
        if layer.num_experts is None:
            layer.num_experts = num_experts
        if layer.num_experts == num_experts:
            return True
        self.has_lost = True
        self.notes.add(f"calls of another number of experts than {layer.num_experts}: not counted", layer=layer.name)
        return False

    def _flat(self, held: Held) -> Held:
        """The call as (T, E) and (T, k), its mask where it fits."""
        layer = self.all[held.layer]
        if held.version >= 0 and held.logits._version != held.version:
            self.notes.add(
                "its logits were changed in place after it returned them; the figures are of what they were changed to",
                layer=layer.name,
            )
        logits = held.logits.flatten(0, -2)
        num_tokens, num_experts = logits.shape
        indices, mask, top_k = held.indices, held.mask, held.top_k
        if indices is not None:
            indices = indices.reshape(num_tokens, -1)
            top_k = indices.shape[1]
        elif top_k is None:
            self.notes.add(_NO_TOP_K, layer=layer.name)
        elif top_k > num_experts:
            top_k = None
            self.notes.add(f"it has {num_experts} experts, fewer than its top_k: none are counted", layer=layer.name)
        if mask is not None and mask.shape[0] != num_tokens:
            self.notes.add(
                "the attention mask is of other tokens than it saw; padding, if any, is counted", layer=layer.name
            )
            mask = None
        return Held(held.layer, logits, indices, mask, held.version, top_k)

    def _add(self, calls: Sequence[Sequence[Held]]) -> None:
        """Adds the calls of some layers, of each as many, alike in shape and mask."""
        first = calls[0][0]
        rooms = [self._room(self.all[own[0].layer], first.logits) for own in calls]
        indices = None
        if first.indices is not None:
            indices = [_in_one([call.indices for call in own if call.indices is not None]) for own in calls]
        rooms[0][0].add(
            tuple(row for _, row in rooms),
            [_in_one([call.logits for call in own]) for own in calls],
            indices=indices,
            top_k=first.top_k,
            mask=_mask_of(calls[0]),
        )

    def _room(self, layer: Tapped, logits: torch.Tensor) -> tuple[LayerSums, int]:
        device, num_experts = logits.device, logits.shape[1]
        if device not in layer.rooms:
            sums = self._sums.get((device, num_experts))
            if sums is None:
                sums = self._sums[device, num_experts] = LayerSums(num_experts=num_experts, device=device)
            layer.rooms[device] = sums, sums.add_layer()
        return layer.rooms[device]

    def taken(self) -> dict[str, torch.Tensor]:
        """By layer: its sums and counts, (6 + E + E + 2,) float64; all begin again at 0.

        A layer that no call was seen of is not in it.
        """
        taken = {id(sums): sums.taken() for sums in self._sums.values()}
        given: dict[str, torch.Tensor] = {}
        for layer in self.all:
            for room, row in layer.rooms.values():
                sums, counts = taken[id(room)]
                own = torch.cat([sums[row], counts[row]])
                before = given.get(layer.name)
                given[layer.name] = own if before is None else before + own.to(before.device)
        return given

    def taken_notes(self) -> list[str]:
        """What could not be measured since they were last taken, and what is left out from then on."""
        for layer in self.all:
            if layer.left_out_for is not None:
                self.notes.add(f"not read, for {layer.left_out_for}", layer=layer.name)
        return self.notes.taken()


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


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in memory of its own where it is a part of a larger one, all of which would be kept."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _in_one(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
