"""The faults that a proof plants, and where: data, and nothing that knows a framework or a loop.

Leaves: a catalogue of faults, the places in a window, and the `Plant` by which one trial names both. A new fault is a
new entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FINITE_SPIKE: Final = "finite spike"
INF_DERIVATIVE: Final = "inf derivative"
NO_TOKENS: Final = "no tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of one micro-batch; a tensor x of the model's output becomes x * factor + noise + shift + root.

    Attributes:
        name: What reports call it.
        noise: Size of positive noise that is added to every number, times the largest of x where that is above 1.
        factor: What every number is multiplied by.
        shift: What is added to every number.
        has_root: Whether (x - x).abs().sqrt() is added: zeros whose derivative is not finite.
        takes_tokens: Whether the batch loses its supervised tokens instead, and the output is left alone.
        blinds: Whether a guard that remembers its loss would be blind to what follows, so that a finite spike is
            planted in the next window, too.
        is_twofold: Whether it is planted in two micro-batches of a window, too, with a healthy one between them.
    """

    name: str
    noise: float = 0.0
    factor: float = 1.0
    shift: float = 0.0
    has_root: bool = False
    takes_tokens: bool = False
    blinds: bool = False
    is_twofold: bool = False

    @property
    def places(self) -> tuple[Place, ...]:
        """Where in a window it is planted."""
        return PLACES if self.is_twofold else tuple(place for place in PLACES if place != "two")


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault(name=FINITE_SPIKE, noise=1000.0, is_twofold=True),
        Fault(name="NaN", factor=float("nan"), blinds=True, is_twofold=True),
        Fault(name="Inf", shift=float("inf"), blinds=True),
        Fault(name=INF_DERIVATIVE, noise=1000.0, has_root=True),
        Fault(name=NO_TOKENS, takes_tokens=True),
    )
}

Place = Literal["first", "middle", "last", "two", "all"]
"""Where in a window; "two" are the first and the last micro-batch."""

PLACES: Final[tuple[Place, ...]] = ("first", "middle", "last", "two", "all")

FAULTY_WINDOW: Final = 2
"""The third window: by then at least six healthy micro-batches lie behind, twice what the guard of a proof asks for."""


def micros_at(place: Place, *, num_micros: int) -> tuple[int, ...]:
    """The 0-based micro-batches of a window at a place.

    Args:
        place: First, middle, last, two (first and last) or all.
        num_micros: Micro-batches in the window, at least 3.
    """
    last = num_micros - 1
    where = {
        "first": (0,),
        "middle": (num_micros // 2,),
        "last": (last,),
        "two": (0, last),
        "all": tuple(range(num_micros)),
    }
    return where[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What a trial does to the micro-batches at one place of one window.

    Attributes:
        window: 0-based.
        place: Which of its micro-batches.
        ranks: Ranks on which it is done.
        fault: Name of the fault that is planted; None: the micro-batch stays healthy.
        size: What the fault's noise is multiplied by; below zero it points the other way.
        left_out: Whether the gradients of the model's output are made zero: the update then never saw the loss.
        but_for: With `left_out`, the one tensor of the output whose gradient is not made zero; None: all are.
        dropped: Whether the optimizer's step of this window finds no gradient.
    """

    window: int
    place: Place
    ranks: tuple[int, ...]
    fault: str | None = None
    size: float = 1.0
    left_out: bool = False
    but_for: str | None = None
    dropped: bool = False
