"""What a format of checkpoints that are not ours is to the rest of `trimtab.resume`.

Enters: nothing. Leaves: `Format`, one for each file here that knows one. Invariant: a name counts whole or not at all,
and the number in it is a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from trimtab.resume.checksum import Progress
from trimtab.resume.foreign.inspected import Inspected

MAX_DIGITS: Final = 18
"""No run counts further than 2**53 steps; a longer number is somebody's date, or somebody's joke."""

NUMBER: Final = "([0-9]+)"
"""The step in the pattern of a name, its one group."""

Kind = Literal["folder", "file"]


class Inspects(Protocol):
    """Looks at all of a checkpoint that has no manifest."""

    def __call__(self, path: Path, /, *, reads: bool = True, progress: Progress | None = None) -> Inspected:
        """Opens nothing but what is in it, and runs nothing; without `reads` it opens nothing at all."""


class Recognises(Protocol):
    """Whether something looks like a checkpoint of a format, whatever it is called."""

    def __call__(self, path: Path, /) -> bool:
        """Opens nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of checkpoints.

    Attributes:
        saver: Who writes them, in one word.
        kind: What one is.
        pattern: Whole names of them, with `NUMBER` in it.
        expected: Such a name as an error spells it.
        recognises: Whether a path is one.
        inspect: What shows of one.
    """

    saver: str
    kind: Kind
    pattern: re.Pattern[str]
    expected: str
    recognises: Recognises
    inspect: Inspects


def step_in(name: str, pattern: re.Pattern[str]) -> int | None:
    """The step in a name; None where it is none of these names."""
    match = pattern.fullmatch(name)
    return int(match[1]) if match is not None and len(match[1]) <= MAX_DIGITS else None
