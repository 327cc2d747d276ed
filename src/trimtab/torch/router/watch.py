"""`RouterWatch`: what the routers of a model do while it trains, in one report every so many steps.

Enters: a model that trains. Leaves: a `RouterReport` whenever one is asked for. Invariant: the training is bit for bit
what it is without the watch, and nothing waits for a device until a report is read. It measures and judges nothing.

Who reduces: every rank, by one sum a report, so every rank collects at the same steps; a rank that is lost holds the
others in it, as in any other collective.

Shapes: L layers, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import UsageError
from trimtab.rules.scalar import whole_number
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain
from trimtab.torch.module_names import module_inside
from trimtab.torch.router.agreement import LayerAgreement
from trimtab.torch.router.cosines import ExpertsOf, PopulationCosines
from trimtab.torch.router.families import (
    Read,
    Routers,
    find_routers,
    named_routers,
    refuse_unknown_top_k,
    unread_routers,
)
from trimtab.torch.router.inputs import (
    checked_populations,
    checked_top_k,
    refuse_no_mask,
    refuse_other_tokens,
    wrong_indices,
    wrong_logits,
)
from trimtab.torch.router.notes import about
from trimtab.torch.router.reading import LayerPlace, RouterReading, packed
from trimtab.torch.router.tap import RouterTap
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
        experts: ExpertsOf | None = None,
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
            top_k: k, of routers that neither have an attribute `top_k` nor return what they chose. Where nobody says
                it, nothing is counted, and the first report is warned of.
            experts: A function of the (bare) model that gives the experts' weights of each router, in the order of the
                routers: (E, ...) tensors, one or several a router. None: the 3-d weights of a module `experts` beside
                the router, where there is one. They are looked at where `num_populations` is above 1.
            config: Settings; None: the defaults.
            process_group: The ranks that train on different rows; None: all of them.

        Raises:
            UsageError: No router was found or one makes no sense; nobody says k of one that gives logits alone; P does
                not divide an E.
        """
        self.config = WatchConfig() if config is None else config
        self.num_populations = checked_populations(num_populations)
        self._top_k = None if top_k is None else checked_top_k(top_k)
        self._agreement = LayerAgreement(process_group)
        unread: tuple[str, ...] = ()
        if routers is None:
            found = find_routers(model)
            unread = unread_routers(model)
            if not found:
                raise UsageError(_none_found(model, unread))
        else:
            found = named_routers(model, routers, top_k=self._top_k)
            refuse_unknown_top_k(found)
        for router in found:
            if router.num_experts is not None:
                checked_populations(num_populations, num_experts=router.num_experts, of=f" of {plain(router.name)!r}")
        self._tap = RouterTap(model, found)
        self._notes = unread
        self._cosines = PopulationCosines(
            module_inside(model), found, experts=experts, num_populations=self.num_populations
        )
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
        wrong = wrong_logits(logits)
        if wrong is None and indices is not None:
            wrong = wrong_indices(indices, logits=logits)
        if wrong is not None:
            raise UsageError(f"tap(layer={plain(layer)!r}) was given {wrong}.")
        if indices is None:
            checked_top_k(self._top_k, num_experts=logits.shape[-1])
        real = None
        if mask is not None:
            refuse_no_mask(mask)
            refuse_other_tokens(mask, logits, name="logits")
            real = mask.detach().flatten() != 0
        self._tap.hold(self._tap.layers.place_of(layer, top_k=self._top_k), Read(logits, indices), mask=real)

    def collect(self, step: int) -> RouterReading:
        """Takes what was seen since the last report, and starts to bring it to the host; does not wait for a device.

        On several ranks every rank calls it at the same steps: it is one sum over them, and the first time an exchange
        of the layers' names, which waits.

        Whatever fails on this rank, it takes part in the sum, for which the others wait: what was lost is noted.

        Args:
            step: The optimizer step (1-based) that has just ended.

        Raises:
            UsageError: The step is none, or torch.distributed was initialised after the watch was made.
        """
        step = whole_number(step, name="step", least=1, expected="the optimizer step (1-based) that has just ended.")
        tap = self._tap
        taken = tap.taken()
        own = [LayerPlace(layer.name, layer.num_experts) for layer in tap.layers.all if layer.num_experts is not None]
        places, notes = self._agreement.places(own)
        notes = [*self._notes, *tap.layers.taken_notes(), *notes]
        seen = {place.name for place in (*own, *places)}
        unseen = [layer.name for layer in tap.layers.all if layer.name not in seen and layer.left_out_for is None]
        if unseen:
            notes.append(about(unseen, "no token was seen so far"))
        ranks = self._agreement.ranks
        cosines: dict[str, torch.Tensor] = {}
        if ranks.rank == 0:
            try:
                cosines, more = self._cosines.now()
            except Exception as error:  # noqa: BLE001 - the other ranks wait in the sum below
                more = [f"no cosine of populations: {type(error).__name__}: {plain(str(error))}"]
            notes += more
        device = next((numbers.device for numbers in taken.sums.values()), self._device)
        copy = packed(places, taken, cosines, step=step, ranks=ranks, device=device)
        begun = RouterReport(
            step=step,
            first_step=min(self._last_step + 1, step),
            num_populations=self.num_populations,
            num_ranks=ranks.world_size,
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


def _none_found(model: nn.Module, unread: tuple[str, ...]) -> str:
    why = f" ({'; '.join(unread)})" if unread else ""
    return (
        f"No router was found in {type(module_inside(model)).__name__}{why}. Pass routers=, a function of the model "
        "that gives its router modules (routers=lambda model: [layer.gate for layer in model.layers], top_k=2), or "
        "routers=() and call tap(logits, layer=...) in the forward."
    )
