"""What the factors of a LambdaLR or MultiplicativeLR hold that may have been made of a learning rate.

Enters: factors: functions, partials, bound methods, objects that are called. Leaves: why they may not be those of the
schedule built afresh. Invariant: no factor is called, and what is found is a reason to refuse, never one to put right.

What stands in the code of a factor is the same in a schedule built afresh; what it was given may not be. A state that
is loaded puts back what is in the `__dict__` of an object that is called, and leaves functions as they were built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from trimtab.torch.lr_reach import Held, held_by

SAME: Final = 1e-9
"""How far two rates that are one may be apart, as a part of them: rounding, multiplied up over a long schedule."""

_BASE: Final = "lr_init"
"""What a factor of `transformers.get_scheduler` calls the rate that it was built at."""

_OF_LIBRARY: Final = (_BASE, "min_lr_rate")
"""What of such a factor may be made of a rate; its other settings are parts of one, whatever it is."""

_FLOOR_WORDS: Final = re.compile(r"(^|[^a-z])(lr|base|end)([^a-z]|$)|min|floor|final")
"""In the name of a number: that it may be a rate, or a floor as a part of one."""

_COUNT_WORDS: Final = re.compile(r"step|warm|epoch|total|iter")
"""In the name of a number: that it counts, and is 1 over a rate by chance: a warm-up of 1,000 steps at 1e-3."""

_AFRESH: Final = "build the optimizer and the scheduler at the new rate, load their states, then ask for it"
_AS_NUMBERS: Final = "Give it the numbers that it needs, and build it at the new rate"
_AS_FUNCTION: Final = "Make the factor a function, which no state changes, and build it at the new rate"


_MAX_NAMED: Final = 4
"""Numbers that a refusal names at most."""


class Rates(NamedTuple):
    """What a number in a factor is compared with.

    Attributes:
        built_at: The rate that the optimizer was built at, which no state changes.
        old: The rates that the groups had when the schedule was built, the one that is named first.
        new: What those are to be.
    """

    built_at: float
    old: tuple[float, ...]
    new: tuple[float, ...]


def same_rate(one: float, other: float) -> bool:
    """Whether two rates are one, but for rounding."""
    return math.isclose(one, other, rel_tol=SAME)


def why_not_afresh(factors: Iterable[Callable[..., Any]], *, rates: Rates) -> str:
    """Why the factors of a LambdaLR may not be those of one built at the new rate; "" where they are."""
    new = rates.new[0]
    is_other = not same_rate(rates.old[0], new)
    for held in map(_held, factors):
        if is_other and held.live:
            return f"has a factor that {held.live}: what that is at another rate cannot be told. {_AS_NUMBERS}"
        built_at = held.numbers.get(_BASE, rates.built_at)
        of_old, of_new = (_made_of(held, wanted) if is_other else [] for wanted in (rates.old, rates.new))
        is_anew = same_rate(built_at, new) or (bool(of_new) and _BASE not in held.numbers)
        if same_rate(built_at, new):
            # Built at the new rate, what only happens to be the old one (a decay of 0.1 a time, say) is no floor.
            of_old = [name for name in of_old if _is_called_as_a_floor(name)]
        suspects = [*of_old, *([] if is_anew else _floors(held))]
        if suspects:
            built_at = rates.old[0] if of_old else built_at
            advice = f". {_AS_FUNCTION}" if held.restored.intersection(suspects) else f": {_AFRESH}"
            named = _spelled(held, [*suspects, *_floors(held)])
            return f"holds a floor ({named}) made for a learning rate of {built_at:.6g}{advice}"
        shares = _shares(held)
        if is_other and shares and not of_new:
            return (
                f"holds {_spelled(held, shares)}, which a saved state puts back; whether that was made of the old "
                f"learning rate cannot be told. {_AS_FUNCTION}"
            )
    return ""


def made_of_a_rate(factors: Iterable[Callable[..., Any]], *, rates: Rates) -> str:
    """What the factors hold that may have been made of a learning rate; "" where there is nothing."""
    for held in map(_held, factors):
        names = [*_made_of(held, (*rates.old, *rates.new)), *_floors(held), *_shares(held)]
        if names or held.live:
            return _spelled(held, names) or f"a factor that {held.live}"
    return ""


def _held(factor: Callable[..., Any]) -> Held:
    """What a factor holds, without what is known to be no matter."""
    found = held_by(factor)
    if found.is_of_library:
        of_rates = {name: value for name, value in found.numbers.items() if name in _OF_LIBRARY}
        found = replace(found, numbers=of_rates)
    if found.ends_at_zero:
        found.numbers.pop(_BASE, None)
    return found


def _made_of(held: Held, rates: Iterable[float]) -> list[str]:
    """The names of numbers that are one of some rates, or 1 over one."""
    names = [name for name in held.numbers if not (held.is_of_library and name != _BASE)]
    return [
        name
        for name in names
        for rate in [rate for rate in rates if rate]
        if same_rate(held.numbers[name], rate)
        or (same_rate(held.numbers[name] * rate, 1.0) and not _COUNT_WORDS.search(name.rpartition(".")[2].lower()))
    ]


def _floors(held: Held) -> list[str]:
    """The names of numbers that are called as a rate or a floor is, and can be one."""
    return [
        name for name, value in held.numbers.items() if name == _BASE or (0 < value < 1 and _is_called_as_a_floor(name))
    ]


def _is_called_as_a_floor(name: str) -> bool:
    return _FLOOR_WORDS.search(name.rpartition(".")[2].lower()) is not None


def _shares(held: Held) -> list[str]:
    """The names of parts of a rate that a state puts back, whatever they are called."""
    return [name for name, value in held.numbers.items() if name in held.restored and 0 < value < 1]


def _spelled(held: Held, names: Iterable[str]) -> str:
    return ", ".join(f"{name}={held.numbers[name]:.6g}" for name in list(dict.fromkeys(names))[:_MAX_NAMED])
