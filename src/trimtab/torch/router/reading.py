"""`RouterReading`: the sums of a report on their way to the host, and the report that is made of them.

Enters: sums of every layer on this rank's devices. Leaves: a `RouterReport`. Invariant: one tensor is summed over the
ranks and one copied to the host; starting it waits for nobody but, on the CPU, the other ranks.

Shapes: L layers, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.torch.ranks import Ranks
from trimtab.torch.router.notes import Notes, about
from trimtab.torch.router.sums import NUM_FIGURES
from trimtab.torch.transfer import InFlight, to_host
from trimtab.watched import LayerFigures, RouterReport


class LayerPlace(NamedTuple):
    """A layer in what is copied.

    Attributes:
        name: Its name.
        num_experts: E.
    """

    name: str
    num_experts: int

    @property
    def width(self) -> int:
        """Numbers of it: its sums, P, and the counts with one place before and one behind."""
        return NUM_FIGURES + 2 * self.num_experts + 2


class Taken(NamedTuple):
    """What a rank has heard since its last report.

    Attributes:
        sums: By name of a layer: its sums and counts, float64; a layer that nothing was seen of is not in it.
        num_tokens: Tokens that went in by calls without a mask.
        num_real_tokens: The real ones of calls with one, 0-d int64 on the device; None: there was no such call.
        are_all: Whether these are all tokens.
        has_lost: Whether something that was to be counted is in no sum.
    """

    sums: Mapping[str, torch.Tensor]
    num_tokens: int
    num_real_tokens: torch.Tensor | None
    are_all: bool
    has_lost: bool


_NUM_TAIL: Final = 3
"""Numbers of a rank that are no layer's: its tokens, whether these are not all, whether something was lost."""

_STEPS_DIFFER: Final = (
    "the ranks collected at different steps, so that this report is of other steps on each: call it at the same steps "
    "on every rank"
)
_LOST_ELSEWHERE: Final = "on one rank or more, what some calls gave could not be summed: it is in no figure"


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
        end = sum(place.width for place in self._places)
        segments = np.split(numbers[:end], np.cumsum([place.width for place in self._places])[:-1])
        cosines = numbers[end : end + len(self._places)]
        num_tokens, num_unknown, num_lost = numbers[end + len(self._places) :][:_NUM_TAIL]
        steps = numbers[end + len(self._places) + _NUM_TAIL :]

        layers, unseen, notes = [], [], Notes()
        for i, place in enumerate(self._places):
            if segments[i][NUM_FIGURES - 1] == 0:
                unseen.append(place.name)
                continue
            layers.append(_figures(place, segments[i], cosine=cosines[i]))
            if _num_strangers(place, segments[i]):
                notes.add(f"it chose experts that are none of its {place.num_experts}: not counted", layer=place.name)
        told = [*begun.notes, *notes.taken()]
        if unseen:
            told.append(about(unseen, "no token was seen in these steps"))
        if num_lost and begun.num_ranks > 1:
            told.append(_LOST_ELSEWHERE)
        if steps.min() != steps.max():
            told.append(_STEPS_DIFFER)
        return RouterReport(
            step=begun.step,
            first_step=begun.first_step,
            layers=tuple(layers),
            num_populations=begun.num_populations,
            expected_tokens=None if num_unknown else round(float(num_tokens)),
            num_ranks=begun.num_ranks,
            notes=tuple(told),
        )


def packed(
    places: Sequence[LayerPlace],
    taken: Taken,
    cosines: Mapping[str, torch.Tensor],
    *,
    step: int,
    ranks: Ranks,
    device: torch.device,
) -> torch.Tensor | InFlight:
    """Starts to bring the numbers of a report to the host; one sum over the ranks, which waits as `Ranks.summed`.

    Args:
        places: The layers, the same on every rank.
        taken: What this rank has heard.
        cosines: By name, 0-d; on the first rank only.
        step: At which it collects.
        ranks: Over which is summed.
        device: Where the numbers are put together.

    Returns:
        Float64: the layers one after another; (L,) cosines; the tokens; how many ranks do not know theirs, and how many
        have lost some; and (W,) the steps, each rank's in a place of its own, so that a sum keeps them.
    """
    try:
        own = _numbers(places, taken, cosines, step=step, ranks=ranks, device=device)
    except Exception:  # noqa: BLE001 - the other ranks are in the sum already, and take no other number of numbers
        width, num_layers = sum(place.width for place in places), len(places)
        own = torch.zeros(width + num_layers + _NUM_TAIL + ranks.world_size, dtype=torch.float64)
        own[width : width + num_layers] = math.nan if ranks.rank == 0 else 0.0
        own[width + num_layers + 1 : width + num_layers + _NUM_TAIL] = 1.0
        own[width + num_layers + _NUM_TAIL + ranks.rank] = step
    return to_host(ranks.summed(own))


def _numbers(
    places: Sequence[LayerPlace],
    taken: Taken,
    cosines: Mapping[str, torch.Tensor],
    *,
    step: int,
    ranks: Ranks,
    device: torch.device,
) -> torch.Tensor:
    def filled(size: int, value: float = 0.0) -> torch.Tensor:
        # A fill and not a copy, which would wait for the device.
        return torch.full((size,), value, dtype=torch.float64, device=device)

    def there(value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(device, torch.float64, non_blocking=True).reshape(-1)

    def of_layer(place: LayerPlace) -> torch.Tensor:
        own = taken.sums.get(place.name)
        # Of another width where ranks have other numbers of experts.
        return filled(place.width) if own is None or own.shape[0] != place.width else there(own)

    parts = [of_layer(place) for place in places]
    # Weights are the same on every rank: the first one tells of them.
    unknown = filled(1, math.nan) if ranks.rank == 0 else filled(1)
    parts += [there(cosines[place.name]) if place.name in cosines else unknown for place in places]
    known = filled(1, taken.num_tokens)
    parts.append(known if taken.num_real_tokens is None else known + there(taken.num_real_tokens))
    parts += [filled(1, not taken.are_all), filled(1, taken.has_lost)]
    parts += [filled(ranks.rank), filled(1, step), filled(ranks.world_size - ranks.rank - 1)]
    return torch.cat(parts)


def _num_strangers(place: LayerPlace, segment: NDArray[np.float64]) -> float:
    """Choices of what is none of the experts."""
    return float(segment[NUM_FIGURES + place.num_experts] + segment[-1])


def _figures(place: LayerPlace, segment: NDArray[np.float64], *, cosine: float) -> LayerFigures:
    z, lse, entropy, spread, squared, tokens = (float(value) for value in segment[:NUM_FIGURES])
    mean_p = segment[NUM_FIGURES : NUM_FIGURES + place.num_experts] / tokens
    counts = segment[NUM_FIGURES + place.num_experts + 1 : -1]
    # A token's k is not on its way, its sums are: it was the same for all tokens where it has no variance.
    num_choices = float(counts.sum()) + _num_strangers(place, segment)
    mean_k = num_choices / tokens
    is_one = math.isclose(squared / tokens, mean_k * mean_k, rel_tol=1e-6)
    load_balance = float(place.num_experts * (counts / num_choices * mean_p).sum()) if num_choices else None
    return LayerFigures(
        name=place.name,
        num_experts=place.num_experts,
        top_k=round(mean_k) if num_choices and is_one else None,
        num_tokens=round(tokens),
        z=z / tokens,
        lse=lse / tokens,
        load_balance=load_balance,
        counts=tuple(round(float(count)) for count in counts) if num_choices else None,
        token_entropy=entropy / tokens,
        spread=spread / tokens,
        population_cosine=None if np.isnan(cosine) else float(cosine),
    )
