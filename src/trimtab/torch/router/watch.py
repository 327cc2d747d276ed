"""`RouterWatch`: what the routers of a model do while it trains, in one report every so many steps.

Enters: a model that trains. Leaves: a `RouterReport` whenever one is asked for. Invariant: the training is bit for bit
what it is without the watch, and nothing waits for a device until a report is read. It measures and judges nothing.

Who reduces: every rank, by one sum a report, so every rank collects at the same steps; a rank that is lost holds the
others in it, as in any other collective.

Shapes: L layers, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import UsageError
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import listed, plain
from trimtab.torch.module_names import module_inside
from trimtab.torch.ranks import Ranks
from trimtab.torch.router.families import Routers, find_routers, named_routers, unread_routers
from trimtab.torch.router.populations import Weights, population_cosine
from trimtab.torch.router.reading import LayerPlace, RouterReading, packed
from trimtab.torch.router.tap import RouterTap
from trimtab.torch.sharding import is_shard
from trimtab.watched import RouterReport


class RouterWatch:
    """Watches the routers of a model: z, load balance, counts, entropies and populations, by layer.

    Counted are the forwards of training: the model trains and gradients are on. Evaluation, generation and the
    recompute of activation checkpointing are not, padding (`attention_mask` of 0) is in no figure, and every
    micro-batch since the last report is in the next one, also one that a guard skipped.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
        >>> watch = RouterWatch(model, routers=lambda model: {"gate": model[1]}, top_k=1)
        >>> logits = model(torch.zeros(6, 4))
        >>> [layer] = watch.report(1).layers
        >>> layer.name, layer.num_tokens, sum(layer.counts)
        ('gate', 6, 6)

    Attributes:
        config: Its settings; `report_every` is for whoever calls `collect`.
        num_populations: Populations that the experts are split into.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        routers: Callable[[nn.Module], Routers] | Routers | None = None,
        num_populations: int = 1,
        top_k: int | None = None,
        experts: Callable[[nn.Module], Iterable[Weights]] | None = None,
        config: WatchConfig | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Puts hooks on a model and its routers; they go with the watch, or by `remove`.

        Args:
            model: What is called in training: bare, or inside of DDP, torch.compile, PEFT or fully_shard. A model that
                is compiled later has to be watched later.
            routers: The router modules of a model of your own: a function of the (bare) model that gives them or a
                mapping from names to them, or these themselves; () where all are told by `tap`. What a router returns
                is logits (..., E) before softmax, or a tuple with the logits first and, somewhere behind them, an
                integer tensor of the k chosen experts of each token. None: those of a Hugging Face model are found.
            num_populations: P, which divides every E.
            top_k: k, of routers that neither have an attribute `top_k` nor return what they chose.
            experts: A function of the (bare) model that gives the experts' weights of each router, in the order of the
                routers: (E, ...) tensors, one or several a router. None: the 3-d weights of a module `experts` beside
                the router, where there is one. They are looked at where `num_populations` is above 1.
            config: Settings; None: the defaults.
            process_group: The ranks that train on different rows; None: all of them.

        Raises:
            UsageError: No router was found or one makes no sense; P does not divide an E.
        """
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
            raise UsageError(f"top_k must be a whole number from 1 on, found {top_k!r}.")
        if isinstance(num_populations, bool) or not isinstance(num_populations, int) or num_populations < 1:
            raise UsageError(f"num_populations must be a whole number from 1 on, found {num_populations!r}.")
        self.config = WatchConfig() if config is None else config
        self.num_populations = num_populations
        self._ranks = Ranks.of(process_group)
        self._process_group = process_group
        self._top_k = top_k
        unread: tuple[str, ...] = ()
        if routers is None:
            found = find_routers(model)
            unread = unread_routers(model)
            if not found:
                raise UsageError(_none_found(model, unread))
        else:
            found = named_routers(model, routers, top_k=top_k)
        for router in found:
            if router.num_experts is not None and router.num_experts % num_populations:
                raise UsageError(
                    f"num_populations={num_populations} does not divide the {router.num_experts} experts of "
                    f"{plain(router.name)!r}: each population has as many as any other."
                )
        self._tap = RouterTap(model, found)
        self._notes = unread
        self._model = module_inside(model)
        self._routers = found
        self._experts = experts
        for name, parts in self._weights().items():
            if any(part.shape[0] % num_populations for part in parts):
                raise UsageError(
                    f"num_populations={num_populations} does not divide the experts of {plain(name)!r}, whose weights "
                    f"have shapes {listed([str(tuple(part.shape)) for part in parts])}: pass (experts, ...)."
                )
        self._agreed: tuple[LayerPlace, ...] | None = None
        self._last_step = 0
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    def tap(
        self,
        logits: torch.Tensor,
        *,
        layer: str,
        indices: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> None:
        """Watches a router that is no module: call it in the forward, where the logits are; it changes nothing.

        Where the model does not train, gradients are off or a backward is under way, nothing is counted.

        Args:
            logits: (..., E), before softmax.
            layer: The router's name, the same at each call.
            indices: The chosen experts, k for each token; None: the `top_k` largest logits.
            mask: Which tokens are real: bool or integers, one for each token, 0 is padding. None: what the model's
                `attention_mask` says.

        Raises:
            UsageError: Nobody says how many experts a token is sent to, or the shapes do not fit.
        """
        if indices is None and self._top_k is None:
            raise UsageError(
                f"tap(layer={plain(layer)!r}) has no indices and RouterWatch no top_k, so nobody says how many experts "
                "a token is sent to: pass one of them."
            )
        if not torch.is_floating_point(logits) or logits.dim() < 2:
            raise UsageError(
                f"tap(layer={plain(layer)!r}) was given logits of shape {tuple(logits.shape)} and {logits.dtype}, "
                "expected a floating-point tensor (..., E), the router's output before softmax."
            )
        num_tokens = logits.shape[:-1].numel()
        for name, given in (("mask", mask), ("indices", indices)):
            if given is None:
                continue
            fits = given.numel() == num_tokens if name == "mask" else given.numel() % max(1, num_tokens) == 0
            if not fits or given.is_floating_point():
                raise UsageError(
                    f"tap(layer={plain(layer)!r}) was given a {name} of shape {tuple(given.shape)} and {given.dtype} "
                    f"for {num_tokens} tokens, expected bool or integers, {'one' if name == 'mask' else 'k'} for each."
                )
        real = None if mask is None else mask.detach().flatten() != 0
        place = self._tap.layers.place_of(layer, top_k=self._top_k)
        self._tap.hold(place, logits, indices=indices, mask=real)

    def collect(self, step: int) -> RouterReading:
        """Takes what was seen since the last report, and starts to bring it to the host; does not wait for a device.

        On several ranks every rank calls it at the same steps: it is one sum over them, and the first time an exchange
        of the layers' names, which waits.

        Args:
            step: The optimizer step (1-based) that has just ended.
        """
        tap = self._tap
        tap.layers.make_sums()
        sums = {tap.layers.all[place].name: numbers for place, numbers in tap.layers.taken().items()}
        own = tuple(
            LayerPlace(layer.name, layer.sums.num_experts, layer.top_k)
            for layer in tap.layers.all
            if layer.sums is not None
        )
        notes = [*self._notes, *tap.layers.notes.values()]
        tap.layers.notes.clear()
        places = self._agreed_places(own, notes)
        told = {place.name for place in places}
        unseen = [plain(layer.name) for layer in tap.layers.all if layer.name not in told and not layer.is_left_out]
        if unseen:
            notes.append(f"{listed(unseen, most=3)}: no token was seen so far")
        cosines = self._cosines(places, notes)
        device = next((numbers[0].device for numbers in sums.values()), self._device)
        copy = packed(places, sums, cosines, tap.taken_tokens(), ranks=self._ranks, device=device)
        begun = RouterReport(
            step=step,
            first_step=min(self._last_step + 1, step),
            num_populations=self.num_populations,
            num_ranks=self._ranks.world_size,
            notes=tuple(notes),
        )
        self._last_step = step
        return RouterReading(copy, places, begun)

    def begin(self, step: int) -> None:
        """Says that `step` optimizer steps are done already: the next report begins after them."""
        self._last_step = step

    def report(self, step: int | None = None) -> RouterReport:
        """The report since the last one; waits for its numbers, and on several ranks for the other ranks.

        Args:
            step: The optimizer step (1-based) that has just ended. None: one more than the last report's.
        """
        return self.collect(self._last_step + 1 if step is None else step).report()

    def remove(self) -> None:
        """Takes the hooks off; what was seen can still be reported."""
        self._tap.remove()

    def _agreed_places(self, own: tuple[LayerPlace, ...], notes: list[str]) -> tuple[LayerPlace, ...]:
        if self._ranks.alone:
            self._ranks.refuse_change(self._process_group, made="RouterWatch")
            return own
        if self._agreed is None:
            every: list[list[tuple[str, int, int | None]] | None] = [None] * self._ranks.world_size
            dist.all_gather_object(every, [tuple(place) for place in own], group=self._ranks.group)
            merged: dict[str, LayerPlace] = {}
            for place in (LayerPlace(*entry) for entries in every for entry in entries or ()):
                known = merged.setdefault(place.name, place)
                if known.num_experts == place.num_experts and known.top_k is None:
                    merged[place.name] = place
            self._agreed = tuple(merged.values())
        known_names = {(place.name, place.num_experts) for place in self._agreed}
        late = [plain(place.name) for place in own if (place.name, place.num_experts) not in known_names]
        if late:
            notes.append(
                f"{listed(late, most=3)} had no call before the first report, in which the ranks agreed on the layers: "
                "left out"
            )
        return self._agreed

    def _cosines(self, places: tuple[LayerPlace, ...], notes: list[str]) -> dict[str, torch.Tensor]:
        cosines: dict[str, torch.Tensor] = {}
        if self._ranks.rank != 0:
            return cosines
        names = {place.name for place in places}
        for name, parts in self._weights().items():
            if any(is_shard(part) for part in parts):
                notes.append(f"the experts of {plain(name)} lie on several ranks: no cosine of populations")
            elif name in names and parts:
                with torch.no_grad():
                    cosines[name] = population_cosine([parts], num_populations=self.num_populations)[0]
        return cosines

    def _weights(self) -> Mapping[str, list[torch.Tensor]]:
        """The experts' weights by router, looked up anew: fully_shard puts others in their place."""
        if self.num_populations == 1:
            return {}
        if self._experts is None:
            return {
                router.name: [part for part in router.experts.parameters(recurse=False) if part.dim() == 3]
                for router in self._routers
                if router.experts is not None
            }
        given = [[layer] if isinstance(layer, torch.Tensor) else list(layer) for layer in self._experts(self._model)]
        if len(given) != len(self._routers):
            raise UsageError(
                f"experts gave the weights of {len(given)} layers, and there are {len(self._routers)} routers: give "
                "those of each router, in the order of the routers."
            )
        return {router.name: parts for router, parts in zip(self._routers, given, strict=True)}


def _none_found(model: nn.Module, unread: tuple[str, ...]) -> str:
    why = f" ({'; '.join(unread)})" if unread else ""
    return (
        f"No router was found in {type(module_inside(model)).__name__}{why}. Pass routers=, a function of the model "
        "that gives its router modules (routers=lambda model: [layer.gate for layer in model.layers], top_k=2), or "
        "routers=() and call tap(logits, layer=...) in the forward."
    )
