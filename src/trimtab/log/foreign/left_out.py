"""Lines of a log that were left out, counted by reason.

Enters: numbers of lines, or of entries, with the reason. Leaves: a notice for each reason. Invariant: nothing is left
out that is not counted; memory is a few numbers a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_NAMED: Final = 5
"""Numbers named in a notice."""


@dataclass(slots=True)
class _Count:
    """How many were left out for one reason, and the numbers of the first few."""

    count: int = 0
    first: list[int] = field(default_factory=list)


class LeftOut:
    """Counts what a reader leaves out.

    Args:
        noun: What is counted.
        nouns: The same in the plural.
        fate: What became of them.
    """

    def __init__(self, noun: str = "line", nouns: str = "lines", *, fate: str = "left out") -> None:
        self._noun = noun
        self._nouns = nouns
        self._fate = fate
        self._counts: dict[str, _Count] = {}

    def add(self, number: int, reason: str) -> None:
        """Counts one.

        Args:
            number: Its number, counted from 1.
            reason: Why, as words that follow the noun: "not JSON".
        """
        self.add_all((number,), reason)

    def add_all(self, numbers: Sequence[int], reason: str) -> None:
        """Counts several, in ascending order."""
        if not numbers:
            return
        counted = self._counts.setdefault(reason, _Count())
        counted.count += len(numbers)
        counted.first.extend(numbers[: MAX_NAMED - len(counted.first)])

    def notices(self) -> list[str]:
        """One for each reason, in the order in which they came up."""
        return [self._notice(reason, counted) for reason, counted in self._counts.items()]

    def _notice(self, reason: str, counted: _Count) -> str:
        if counted.count == 1:
            return f"1 {self._noun} {reason} was {self._fate} ({self._noun} {counted.first[0]})"
        named = ", ".join(map(str, counted.first)) + (", ..." if counted.count > MAX_NAMED else "")
        return f"{counted.count} {self._nouns} {reason} were {self._fate} ({self._nouns} {named})"


def on_open_line(number: int | None) -> list[str]:
    """What to say of a last line without a line end; nothing without one.

    It is left out whatever it holds: a number cut short is a number still, and may be a wrong step or loss.
    """
    if number is None:
        return []
    return [f"the last line ({number}) has no line end and was left out: it may be torn"]
