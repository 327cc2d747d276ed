"""How alike the populations' weights are, by router, for a report.

Enters: a model's routers, and where their experts' weights are. Leaves: one cosine a router, 0-d on its device.
Invariant: no weight is copied whole, and of weights that lie on several ranks nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.text import plain
from trimtab.torch.router.families import Router
from trimtab.torch.router.inputs import checked_populations
from trimtab.torch.router.notes import Notes
from trimtab.torch.router.populations import Weights, population_cosine
from trimtab.torch.sharding import is_shard

ExpertsOf = Callable[[nn.Module], Iterable[Weights]]
"""Takes the bare model; gives the experts' weights of each router, in the order of the routers."""


class PopulationCosines:
    """The cosines of one watch.

    Args:
        model: The bare model.
        routers: Its routers.
        experts: Where their experts' weights are; None: each router knows.
        num_populations: P; 1: there is nothing to compare.

    Raises:
        UsageError: P does not divide the experts of a router, or weights are not those of each router.
    """

    def __init__(
        self, model: nn.Module, routers: Sequence[Router], *, experts: ExpertsOf | None, num_populations: int
    ) -> None:
        self._model = model
        self._routers = routers
        self._experts = experts
        self._num_populations = num_populations
        for name, parts in self._weights().items():
            for part in parts:
                checked_populations(num_populations, num_experts=part.shape[0], of=f" of {plain(name)!r}")

    @torch.no_grad()
    def now(self) -> tuple[dict[str, torch.Tensor], list[str]]:
        """The cosines as the weights are now, and of which there are none, in words; waits for nothing."""
        notes = Notes()
        cosines: dict[str, torch.Tensor] = {}
        for name, parts in self._weights().items():
            if any(is_shard(part) for part in parts):
                notes.add("its experts lie on several ranks: no cosine of populations", layer=name)
            elif parts:
                cosines[name] = population_cosine([parts], num_populations=self._num_populations)[0]
        return cosines, notes.taken()

    def _weights(self) -> dict[str, list[torch.Tensor]]:
        """The experts' weights by router, looked up anew: fully_shard puts others in their place."""
        if self._num_populations == 1:
            return {}
        if self._experts is None:
            return {router.name: router.expert_weights() for router in self._routers}
        given = [[layer] if isinstance(layer, torch.Tensor) else list(layer) for layer in self._experts(self._model)]
        if len(given) != len(self._routers):
            raise UsageError(
                f"experts gave the weights of {len(given)} layers, and there are {len(self._routers)} routers: give "
                "those of each router, in the order of the routers."
            )
        return {router.name: parts for router, parts in zip(self._routers, given, strict=True)}
