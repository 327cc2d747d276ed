"""The format `trainer_state.json` of the Hugging Face trainer: `log_history`, a list of entries.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is one if it is JSON with a `log_history`
near its beginning, or such a list alone. Of the checkpoints in an output folder the newest is read that holds an entry:
its list holds those of all before it. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.log.foreign.line_blocks import without_mark
from trimtab.log.foreign.lone_file import numbered_files, on_numbered

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ("trainer_state.json",)

_HISTORY: Final = re.compile(rb'\{[^\x00]*?"log_history"\s*:')
_LIST: Final = re.compile(rb'\[\s*\{[^\x00]*?loss"\s*:')
"""A list of entries that stands alone."""

_CHECKPOINT: Final = re.compile(r"checkpoint-([0-9]{1,18})")


def recognises(path: Path, head: bytes) -> bool:
    """Whether the file begins as one does; one named so that was stopped before its list is one too.

    Args:
        path: The file.
        head: Its first bytes.
    """
    text = without_mark(head).lstrip()
    if _HISTORY.match(text) or _LIST.match(text):
        return True
    return path.name == FILE_NAMES[0] and text.startswith(b"{")


def open_source(path: Path, *, notices: Sequence[str] = ()) -> Source:
    """Opens a file for reading.

    Args:
        path: A file that was recognised.
        notices: What is to be said first.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.steps.source import StepSource
    from trimtab.log.foreign.trainer_state.reader import read_state

    return StepSource(
        path,
        format_name="trainer_state",
        read=lambda progress: read_state(path, progress=progress),
        backend="transformers",
        place="entry",
        notices=notices,
    )


def source_in(folder: Path) -> Source | None:
    """The newest checkpoint's file in an output folder that holds an entry; None where no checkpoint has a file.

    Args:
        folder: Any folder.

    Raises:
        LogError: It cannot be read.
    """
    from trimtab.log.foreign.trainer_state.reader import has_entries

    found = numbered_files(folder, name=_CHECKPOINT, file=FILE_NAMES[0])
    if not found:
        return None
    place = next((place for place, file in enumerate(found) if has_entries(file)), 0)
    # A checkpoint holds the entries of those before it: no word is said of these, but of one that should and does not.
    return open_source(found[place], notices=on_numbered(found, place, folder=folder) if place else ())
