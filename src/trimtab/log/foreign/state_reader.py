"""Reads a `trainer_state.json`, entry by entry.

Enters: a path. Leaves: `Metrics`. Invariant: entries are read one at a time as they stand, so that of a torn file all
before the tear is read, and a large one is never held whole: memory is one entry and what `Entries` takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from trimtab.log.foreign.entries import Entries
from trimtab.log.foreign.line_blocks import BLOCK_BYTES
from trimtab.log.foreign.step_source import Metrics, Progress

MAX_ENTRY_CHARACTERS: Final = 4 << 20
"""A longer entry is taken for the end of what can be read."""

_LIST: Final = re.compile(r'(?:\A\ufeff?\s*|"log_history"\s*:\s*)\[')
_GAP: Final = re.compile(r"[\s,]*")


class _Torn(Exception):  # noqa: N818 - it is no error: what was read stays
    """The list ends where no list does."""


def read_state(path: Path, *, progress: Progress | None = None) -> Metrics:
    """Reads the whole list.

    Args:
        path: The file.
        progress: Called now and then with the number of bytes done.

    Raises:
        OSError: It cannot be read.
    """
    entries, number, torn = Entries("entry", "entries"), 0, []
    with path.open("rb") as file:
        try:
            for entry in _entries(file, progress=progress):
                number += 1
                if isinstance(entry, dict):
                    entries.take(entry, place=number)
                else:
                    entries.left_out.add(number, "not an object")
        except _Torn:
            torn.append(f"the file is torn after entry {number}: what stands before was read")
    metrics = entries.metrics()
    return metrics._replace(notices=[*torn, *metrics.notices])


def _entries(file: BinaryIO, *, progress: Progress | None) -> Iterator[Any]:
    """The entries of the list; raises `_Torn` where it does not end."""
    decoder = json.JSONDecoder()
    text = _Window(file, progress=progress)
    text.find_list()
    while True:
        text.skip(_GAP)
        if text.next_character() == "]":
            return
        yield text.decode(decoder)


class _Window:
    """A part of the file, as text, that moves on over it."""

    def __init__(self, file: BinaryIO, *, progress: Progress | None) -> None:
        self._file = file
        self._progress = progress
        self._text, self._at = "", 0

    def find_list(self) -> None:
        """Moves behind the bracket that opens the list."""
        while (found := _LIST.search(self._text)) is None:
            # Enough stays for a name that the end of a part cuts.
            if len(self._text) > MAX_ENTRY_CHARACTERS or not self._more():
                raise _Torn
        self._at = found.end()

    def skip(self, gap: re.Pattern[str]) -> None:
        """Moves over what matches, also where it goes on in the next part."""
        while True:
            found = gap.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return

    def next_character(self) -> str:
        """The character that comes next; raises `_Torn` at the end of the file."""
        if self._at == len(self._text):
            raise _Torn
        return self._text[self._at]

    def decode(self, decoder: json.JSONDecoder) -> Any:
        """The value that comes next; raises `_Torn` where none does."""
        while True:
            try:
                value, self._at = decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError):
                if len(self._text) - self._at > MAX_ENTRY_CHARACTERS or not self._more():
                    raise _Torn from None
            else:
                return value

    def _more(self) -> bool:
        """Reads the next part behind what has not been read; False at the end of the file."""
        data = self._file.read(BLOCK_BYTES)
        if self._progress:
            self._progress(self._file.tell())
        # json.dumps writes ASCII; a character that the end of a part cuts becomes two that are none, in a text.
        self._text, self._at = self._text[self._at :] + data.decode("utf-8", "replace"), 0
        return bool(data)
