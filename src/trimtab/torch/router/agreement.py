"""Which layers a report has: the same on every rank, in one order, so that one sum fits all.

Enters: the layers that a rank has seen. Leaves: those that the ranks have agreed on, in their first report. Invariant:
every rank comes here equally often; only the first time anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from trimtab.torch.ranks import Ranks
from trimtab.torch.router.notes import about
from trimtab.torch.router.reading import LayerPlace


class LayerAgreement:
    """What the ranks of one watch have agreed on.

    Args:
        process_group: The ranks that train on different rows; None: all of them.

    Attributes:
        ranks: These.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self.ranks = Ranks.of(process_group)
        self._process_group = process_group
        self._agreed: tuple[LayerPlace, ...] | None = None

    def places(self, own: Sequence[LayerPlace]) -> tuple[tuple[LayerPlace, ...], list[str]]:
        """The layers of a report, and what is to be noted of those that are not in it; the first time it waits.

        Args:
            own: The layers that this rank has seen up to now.

        Raises:
            UsageError: torch.distributed was initialised after the watch was made.
        """
        if self.ranks.alone:
            self.ranks.refuse_change(self._process_group, made="RouterWatch")
            return tuple(own), []
        if self._agreed is None:
            self._agreed = self._exchanged(own)
        agreed = {place.name: place.num_experts for place in self._agreed}
        late = [place.name for place in own if place.name not in agreed]
        unlike = [place.name for place in own if agreed.get(place.name, place.num_experts) != place.num_experts]
        notes = []
        if late:
            notes.append(
                about(late, "no call was seen before the ranks agreed on the layers, in a first report: it is left out")
            )
        if unlike:
            notes.append(about(unlike, "another rank has another number of experts: what this rank saw is left out"))
        places = self._agreed
        if not places:
            self._agreed = None  # nobody has seen a layer yet, which every rank knows: they agree in the next report
        return places, notes

    def _exchanged(self, own: Sequence[LayerPlace]) -> tuple[LayerPlace, ...]:
        every: list[list[tuple[str, int]] | None] = [None] * self.ranks.world_size
        dist.all_gather_object(every, [tuple(place) for place in own], group=self.ranks.group)
        merged: dict[str, LayerPlace] = {}
        for place in (LayerPlace(*entry) for entries in every for entry in entries or ()):
            merged.setdefault(place.name, place)
        return tuple(merged.values())
