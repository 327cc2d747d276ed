"""A file of `torch.save`'s: is it whole, what does it hold, and would loading it run anything?

Enters: a file that may come from a stranger. Leaves: a `TorchFile`. Invariant: nothing of it is imported, called,
inflated or made; every byte of its payload is read once and held against the checksum in the archive, which torch
itself does not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from trimtab.resume.checksum import Progress
from trimtab.resume.foreign.payload import Unsound, opened
from trimtab.resume.foreign.pickle_walk import MAX_PICKLE_BYTES, BadPickle, NeedsPickle, Pickled, walk
from trimtab.resume.foreign.zip_archive import BadArchive, Entry, read_entries, read_entry, wrong_checksums
from trimtab.text import listed, plain

MAX_NAMED: Final = 3
"""Entries or names told of one file."""

_ZIP_START: Final = b"PK\x03\x04"
_PICKLE_START: Final = b"\x80"


@dataclass(frozen=True, slots=True)
class TorchFile:
    """What a look at a file of torch's gave.

    Attributes:
        problems: What is wrong, the end of a sentence each that begins with the file's name; none if nothing is.
        pickled: What its pickle holds; None where it cannot be told.
        needs_pickle: Whether all that is wrong is that nothing but pickle would load it.
    """

    problems: tuple[str, ...]
    pickled: Pickled | None = None
    needs_pickle: bool = False


def inspect_torch_file(path: Path, *, allowed: frozenset[str] | None, progress: Progress | None = None) -> TorchFile:
    """Looks at all of a file.

    Args:
        path: The file.
        allowed: Names that its pickle may mention; None where whoever loads it takes any, and no pickle is looked at.
        progress: Called now and then with how many more bytes were read.
    """
    try:
        with opened(path) as file:
            entries = _entries(file)
            damaged = tuple(_damages(file, entries, progress=progress))
            if damaged or allowed is None:
                return TorchFile(damaged)
            pickled = _pickled(file, entries)
    except (Unsound, BadArchive, BadPickle) as error:
        return TorchFile((str(error),), needs_pickle=isinstance(error, NeedsPickle))
    refusals = tuple(_refusals(pickled, allowed=allowed))
    return TorchFile(refusals, pickled, needs_pickle=bool(refusals))


def _entries(file: BinaryIO) -> tuple[Entry, ...]:
    start = file.read(len(_ZIP_START))
    if start.startswith(_PICKLE_START):
        raise NeedsPickle("needs pickle: it is a bare pickle and no zip archive, as torch.save wrote before 1.6")
    if start != _ZIP_START:
        raise BadArchive("does not begin as a file of torch.save's does")
    return read_entries(file)


def _damages(file: BinaryIO, entries: tuple[Entry, ...], *, progress: Progress | None) -> Iterator[str]:
    wrong = [plain(entry.name) for entry in wrong_checksums(file, entries, progress=progress)]
    if wrong:
        yield f"does not hold the bytes that were saved: the CRC-32 of {listed(wrong, most=MAX_NAMED)} differs"


def _pickled(file: BinaryIO, entries: tuple[Entry, ...]) -> Pickled:
    by_name = {entry.name: entry for entry in entries}
    places = [name for name in by_name if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(places) != 1:
        raise BadArchive(f"has {'no' if not places else 'more than one'} data.pkl, which torch.save writes once")
    folder = places[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in by_name:
        raise NeedsPickle("needs pickle: it is a TorchScript archive, which holds code")
    entry = by_name[places[0]]
    if entry.size_bytes > MAX_PICKLE_BYTES:
        raise BadPickle(f"has {entry.size_bytes:,} bytes of pickle; more than {MAX_PICKLE_BYTES:,} are not looked at")
    pickled = walk(read_entry(file, entry))
    gone = sorted(key for key in pickled.storages if f"{folder}data/{key}" not in by_name)
    if gone:
        raise BadArchive(f"lacks the bytes of {len(gone)} of its tensors, {plain(f'{folder}data/{gone[0]}')} for one")
    return pickled


def _refusals(pickled: Pickled, *, allowed: frozenset[str]) -> Iterator[str]:
    unsafe = [plain(name) for name in pickled.names if name not in allowed]
    if unsafe:
        yield f"needs pickle: {listed(unsafe, most=MAX_NAMED)}, which weights_only=True does not load"
