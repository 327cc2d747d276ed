"""`RouterReading`: the sums of a report on their way to the host, and the report that is made of them.

Enters: sums of every layer on this rank's devices. Leaves: a `RouterReport`. Invariant: one tensor is summed over the
ranks and one copied to the host; starting it waits for nobody but, on the CPU, the other ranks.

Shapes: L layers, E experts, W ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.text import listed, plain
from trimtab.torch.ranks import Ranks
from trimtab.torch.router.sums import NUM_FIGURES
from trimtab.torch.transfer import InFlight, to_host
from trimtab.watched import LayerFigures, RouterReport


class LayerPlace(NamedTuple):
    """A layer in what is copied.

    Attributes:
        name: Its name.
        num_experts: E.
        top_k: Experts a token is sent to; None where nobody says it.
    """

    name: str
    num_experts: int
    top_k: int | None

    @property
    def width(self) -> int:
        """Numbers of it: its sums, P, and the counts with one place before and one behind."""
        return NUM_FIGURES + 2 * self.num_experts + 2


class RouterReading:
    """A report that may still be on its way; made by `RouterWatch.collect`."""

    def __init__(self, copy: torch.Tensor | InFlight, places: Sequence[LayerPlace], report: RouterReport) -> None:
        """Keeps what the report is made of.

        Args:
            copy: The numbers, as `packed` puts them.
            places: The layers in them.
            report: What is known already: its steps, ranks and notes.
        """
        self._copy = copy
        self._places = tuple(places)
        self._report = report

    def is_ready(self) -> bool:
        """Whether `report` does not wait."""
        return not isinstance(self._copy, InFlight) or self._copy.is_ready()

    def report(self) -> RouterReport:
        """The report; waits until its numbers have arrived."""
        numbers = np.asarray(self._copy)
        begun = self._report
        num_layers, num_ranks = len(self._places), begun.num_ranks
        end = sum(place.width for place in self._places)
        segments = np.split(numbers[:end], np.cumsum([place.width for place in self._places])[:-1])
        peaks = numbers[end : end + num_layers * num_ranks].reshape(num_ranks, num_layers)
        cosines = numbers[end + num_layers * num_ranks :][:num_layers]
        num_tokens, num_unknown = numbers[-2:]

        layers, unseen, notes = [], [], list(begun.notes)
        for i, place in enumerate(self._places):
            if segments[i][NUM_FIGURES - 1] == 0:
                unseen.append(plain(place.name))
                continue
            layers.append(_figures(place, segments[i], peak=peaks[:, i].max(), cosine=cosines[i]))
            strangers = round(float(segments[i][NUM_FIGURES + place.num_experts] + segments[i][-1]))
            if strangers:
                notes.append(
                    f"{plain(place.name)} chose an expert {strangers:,} times that is none of its {place.num_experts}: "
                    "not counted"
                )
        if unseen:
            notes.append(f"{listed(unseen, most=3)} saw no token in these steps")
        return RouterReport(
            step=begun.step,
            first_step=begun.first_step,
            layers=tuple(layers),
            num_populations=begun.num_populations,
            expected_tokens=None if num_unknown else round(float(num_tokens)),
            num_ranks=num_ranks,
            notes=tuple(notes),
        )


def packed(
    places: Sequence[LayerPlace],
    sums: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    cosines: Mapping[str, torch.Tensor],
    tokens: tuple[int, torch.Tensor | None, bool],
    *,
    ranks: Ranks,
    device: torch.device,
) -> torch.Tensor | InFlight:
    """Starts to bring the numbers of a report to the host; one sum over the ranks, which waits as `Ranks.summed`.

    Args:
        places: The layers, the same on every rank.
        sums: By name: a layer's sums and counts, float64, and its largest absolute logit; a layer that this rank saw
            nothing of is not in it.
        cosines: By name, 0-d; on the first rank only.
        tokens: As `RouterTap.taken_tokens` gives them.
        ranks: Over which is summed.
        device: Where the numbers are put together.

    Returns:
        Float64: the layers one after another; the largest absolute logits (W, L), each rank's in a row of its own, so
        that a sum keeps them; (L,) cosines; the tokens; and how many ranks do not know theirs.
    """

    def filled(size: int, value: float = 0.0) -> torch.Tensor:
        # A fill and not a copy, which would wait for the device.
        return torch.full((size,), value, dtype=torch.float64, device=device)

    def there(value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(device, torch.float64, non_blocking=True).reshape(-1)

    nothing = filled(1)
    parts = [there(sums[place.name][0]) if place.name in sums else filled(place.width) for place in places]
    own = [there(sums[place.name][1]) if place.name in sums else nothing for place in places]
    others_before, others_after = ranks.rank * len(places), (ranks.world_size - ranks.rank - 1) * len(places)
    parts += [filled(others_before), *own, filled(others_after)]
    # Weights are the same on every rank: the first one tells of them.
    unknown = filled(1, float("nan")) if ranks.rank == 0 else nothing
    parts += [there(cosines[place.name]) if place.name in cosines else unknown for place in places]
    num_tokens, num_real_tokens, are_all = tokens
    known = filled(1, num_tokens)
    parts.append(known if num_real_tokens is None else known + there(num_real_tokens))
    parts.append(filled(1, not are_all))
    return to_host(ranks.summed(torch.cat(parts)))


def _figures(place: LayerPlace, segment: NDArray[np.float64], *, peak: float, cosine: float) -> LayerFigures:
    z, lse, entropy, spread, tokens = (float(value) for value in segment[:NUM_FIGURES])
    mean_p = segment[NUM_FIGURES : NUM_FIGURES + place.num_experts] / tokens
    counts = segment[NUM_FIGURES + place.num_experts + 1 : -1]
    load_balance = None
    if place.top_k is not None:
        load_balance = float(place.num_experts * (counts / tokens * mean_p).sum() / place.top_k)
    return LayerFigures(
        name=place.name,
        num_experts=place.num_experts,
        top_k=place.top_k,
        num_tokens=round(tokens),
        z=z / tokens,
        lse=lse / tokens,
        load_balance=load_balance,
        counts=None if place.top_k is None else tuple(round(float(count)) for count in counts),
        token_entropy=entropy / tokens,
        spread=spread / tokens,
        max_logit=float(peak),
        population_cosine=None if np.isnan(cosine) else float(cosine),
    )
