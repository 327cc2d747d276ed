"""TensorBoard's event files: one of them, or a folder that holds those of a run, or runs in folders of their own.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is known by the version that stands in its
first record, or by its name where that is damaged; of a folder no file is read before its source is asked for
something. What reads them is loaded when a log is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ()
"""None: a file is named after the time and the machine (`events.out.tfevents.1700000000.host.1.0`)."""

MAX_DEPTH: Final = 3
"""Folders below the one named that are looked into: `<out>/runs/<date and host>/` is two."""

MAX_ENTRIES: Final = 10_000
"""Files and folders looked at before a search is given up: somebody may name their home."""

_IN_NAME: Final = ".tfevents."
_VERSION: Final = b"brain.Event:"
_VERSION_WITHIN: Final = 64  # a head of 12 bytes, the time, the version: 36 at most


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is an event file.

    Args:
        path: The file; its name tells where its first record is damaged.
        head: Its first bytes.
    """
    return _VERSION in head[:_VERSION_WITHIN] or (_IN_NAME in path.name and b"\0" in head)


def open_source(path: Path) -> Source:
    """Opens one event file for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when it is asked for something.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.tensorboard.source import open_event_files

    return open_event_files(path, [path])


def source_in(folder: Path) -> Source | None:
    """The event files in a folder as one log; where there are none, those of the newest run in a folder below.

    Args:
        folder: Any folder.

    Returns:
        The source; None where no event file is found.

    Raises:
        LogError: A file cannot be read.
    """
    from trimtab.log.foreign.tensorboard.source import open_event_files

    runs = _runs_in(folder)
    if not runs:
        return None
    newest = max(runs, key=lambda run: (_began(runs[run][-1]), str(run)))
    several = (
        f"{len(runs)} folders with event files are in {folder}; the newest, {newest.relative_to(folder)}, was read"
    )
    return open_event_files(newest, runs[newest], notices=[several] if len(runs) > 1 else [])


def _runs_in(folder: Path) -> dict[Path, list[Path]]:
    """Event files by the folder they are in, each in the order of their beginnings."""
    runs: dict[Path, list[Path]] = {}
    for file in _event_files(folder):
        runs.setdefault(file.parent, []).append(file)
    if folder in runs:
        runs = {folder: runs[folder]}
    return {run: sorted(files, key=lambda file: (_began(file), file.name)) for run, files in runs.items()}


def _event_files(folder: Path) -> Iterator[Path]:
    """Event files in a folder and, link by link unfollowed, below it."""
    waiting, num_seen = [(folder, 0)], 0
    while waiting:
        place, depth = waiting.pop(0)
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue  # not ours to look into: what is readable is read
        for entry in entries:
            num_seen += 1
            if num_seen > MAX_ENTRIES:
                return
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((Path(entry.path), depth + 1))
            elif _IN_NAME in entry.name and entry.is_file():
                yield Path(entry.path)


def _began(file: Path) -> int:
    """Seconds since the epoch, as an event file's name says; 0 where it does not."""
    digits = file.name.partition(_IN_NAME)[2].partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
