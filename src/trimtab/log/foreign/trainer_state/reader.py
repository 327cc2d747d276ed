"""Reads a `trainer_state.json`, entry by entry.

Enters: a path. Leaves: `Metrics`. Invariant: entries are read one at a time as they stand, so that of a torn file all
before the tear is read, of a damaged one all but the entries that are, and a large one is never held whole: memory is
one entry and what `Entries` takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from trimtab.log.foreign.line_blocks import BLOCK_BYTES
from trimtab.log.foreign.steps.entries import Entries
from trimtab.log.foreign.steps.source import Metrics, Progress

MAX_ENTRY_CHARACTERS: Final = 4 << 20
"""A longer entry is left out."""

_KEPT_CHARACTERS: Final = 4_096
"""Kept of what is searched for the next entry: more than the blanks between two of them take."""

NEAR_ENTRIES: Final = 100
"""Entries among which one must be whole for a file to be worth reading."""

_LIST: Final = re.compile(r'(?:\A\ufeff?\s*|"log_history"\s*:\s*)\[')
_GAP: Final = re.compile(r"[\s,]*")
_NEXT: Final = re.compile(r",\s*(?=\{)|\}\s*(?=\])")
"""What stands between entries, or behind the last; entries are flat."""
_OBJECT: Final = re.compile(r"(?=\{)")


class _Damaged:
    """An entry that is no JSON."""


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
                if isinstance(entry, _Damaged):
                    entries.left_out.add(number, "not JSON")
                elif isinstance(entry, dict):
                    entries.take(entry, place=number)
                else:
                    entries.left_out.add(number, "not an object")
        except _Torn:
            torn.append(f"the file is torn after entry {number}: what stands before was read")
    metrics = entries.metrics()
    return metrics._replace(notices=[*torn, *metrics.notices])


def has_entries(path: Path) -> bool:
    """Whether a file can be read and its list holds an entry."""
    try:
        with path.open("rb") as file:
            return any(isinstance(entry, dict) for entry in islice(_entries(file, progress=None), NEAR_ENTRIES))
    except (OSError, _Torn):
        return False


def _entries(file: BinaryIO, *, progress: Progress | None) -> Iterator[Any]:
    """The entries of the list, `_Damaged` for one that is none; raises `_Torn` where the list does not end."""
    decoder = json.JSONDecoder()
    text = _Window(file, progress=progress)
    text.find_list()
    while True:
        text.skip(_GAP)
        character = text.next_character()
        if character == "]":
            return
        value = text.decode(decoder)
        if isinstance(value, _Damaged):
            # Damage between two entries ends where the next one begins.
            text.find(_NEXT if character == "{" else _OBJECT)
        yield value


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
        """The value that comes next; `_Damaged` where none does."""
        while True:
            try:
                value, self._at = decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError):
                if len(self._text) - self._at > MAX_ENTRY_CHARACTERS or not self._more():
                    return _Damaged()
            else:
                return value

    def find(self, what: re.Pattern[str]) -> None:
        """Moves behind what is found next, however far; raises `_Torn` where nothing is."""
        self._at += 1
        while (found := what.search(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - _KEPT_CHARACTERS)
            if not self._more():
                raise _Torn
        self._at = found.end()

    def _more(self) -> bool:
        """Reads the next part behind what has not been read; False at the end of the file."""
        data = self._file.read(BLOCK_BYTES)
        if self._progress:
            self._progress(self._file.tell())
        # json.dumps writes ASCII; a character that the end of a part cuts becomes two that are none, in a text.
        self._text, self._at = self._text[self._at :] + data.decode("utf-8", "replace"), 0
        return bool(data)
