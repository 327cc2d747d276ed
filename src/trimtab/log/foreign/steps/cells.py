"""One cell of a metric log, a text, becomes a number.

Enters: text. Leaves: a number, None for a cell that says nothing, or `NoNumber`. Invariant: what is not spelled as a
number is none: no underscores, no other digits than 0 to 9, no units; "nan" and "inf" keep their kind.
"""

from __future__ import annotations

import math
import re
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?")
_NONFINITE: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_MISSING: Final = frozenset(("", "none", "null", "na", "n/a", "-"))

INT64: Final = range(-(2**63), 2**63)


class NoNumber:
    """A text that is no number."""


def read_number(text: str) -> float | NoNumber | None:
    """The number that a text spells.

    Example:
        >>> read_number(" 2.5e-1 "), read_number(""), read_number("-Infinity")
        (0.25, None, -inf)
    """
    cell = text.strip()
    if _NUMBER.fullmatch(cell):
        return float(cell)
    # The longest word here has 9 characters and a sign.
    word = cell.lower() if len(cell) <= 10 else "?"
    if word in _MISSING:
        return None
    sign = -1.0 if word.startswith("-") else 1.0
    kind = _NONFINITE.get(word.removeprefix("-") if sign < 0 else word.removeprefix("+"))
    return NoNumber() if kind is None else sign * kind


def as_step(value: float | None) -> int | None:
    """A number as a step: whole, and of 64 bits; None where it is none. 12.0 is whole: what holds gaps is float."""
    if value is None or not math.isfinite(value) or value != math.floor(value):
        return None
    whole = int(value)
    return whole if whole in INT64 else None
