"""Joins lines of a CSV file that are one record, because a quoted cell of theirs goes on over the end of the line.

Enters: numbered lines, block by block. Leaves: records, each with the number of its first line. Invariant: a line is in
one record, or counted as left out; what stands inside quotes is no record of its own. Quotes that are no record's cost
the line they open in and no more: a cell of more than `MAX_LINES` lines is none, nor is a record of too many cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.foreign.metrics_csv.header import Header, split_line

MAX_LINES: Final = 1_000
"""Lines of one record: a text that the model wrote may go on for some."""

MAX_CHARACTERS: Final = 1 << 20
"""Characters of one record that is held until its quotes are closed."""

_NOT_CLOSED: Final = "with quotes that are not closed"


class JoinedLines:
    """Joins the lines of one file.

    Args:
        left_out: Counts the lines that are in no record.

    Attributes:
        header: The header that the next lines stand under; set before they are joined.
    """

    header: Header

    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._held: list[tuple[int, str]] = []
        self._num_characters = 0

    @property
    def is_open(self) -> bool:
        """Whether quotes are open behind the last line."""
        return bool(self._held)

    def join(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Records of a block; one that its last lines leave open is held for the next."""
        again: deque[tuple[int, str]] = deque()
        while True:
            taken = again.popleft() if again else next(lines, None)
            if taken is None:
                return
            line = taken[1]
            if not self._held and '"' not in line:
                yield taken
                continue
            is_open = _ends_in_quotes(line, separator=self.header.separator, begins_in_them=self.is_open)
            self._held.append(taken)
            self._num_characters += len(line)
            if is_open and len(self._held) < MAX_LINES and self._num_characters < MAX_CHARACTERS:
                continue
            held, self._held, self._num_characters = self._held, [], 0
            text = "\n".join(line for _, line in held)
            if is_open:
                self._left_out.add(held[0][0], _NOT_CLOSED)
            elif len(held) == 1 or len(split_line(text, self.header.separator)) <= len(self.header.names):
                yield held[0][0], text
                continue
            else:
                yield held[0]
            again.extendleft(reversed(held[1:]))

    def end(self) -> None:
        """Counts what is left open at the end of the file: all of it may stand inside the quotes."""
        self._left_out.add_all([number for number, _ in self._held], _NOT_CLOSED)
        self._held = []


def _ends_in_quotes(line: str, *, separator: str, begins_in_them: bool) -> bool:
    """Whether quotes are open behind a line; they open at the beginning of a cell, and two in one are a character."""
    is_open, may_reopen = begins_in_them, False
    before = separator if not begins_in_them else ""
    for text in line.split('"')[:-1]:
        before += text
        if is_open:
            is_open, may_reopen = False, True
        else:
            is_open = (may_reopen and not before) or before.endswith(separator)
            may_reopen = False
        before = ""
    return is_open
