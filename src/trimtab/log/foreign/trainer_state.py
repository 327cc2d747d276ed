"""The format `trainer_state.json` of the Hugging Face trainer: `log_history`, a list of entries.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is one if it is JSON with a `log_history`
near its beginning, or such a list alone. Of the checkpoints in an output folder the newest is read: its list holds
those of all before it. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HISTORY.match(text) or _LIST.match(text):
        return True
    return path.name == FILE_NAMES[0] and text.startswith(b"{")


def open_source(path: Path) -> Source:
    """Opens a file for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.state_reader import read_state
    from trimtab.log.foreign.step_source import StepSource

    return StepSource(
        path, read=lambda progress: read_state(path, progress=progress), backend="transformers", place="entry"
    )


def source_in(folder: Path) -> Source | None:
    """The newest checkpoint's file in an output folder; None where no checkpoint has one.

    Args:
        folder: Any folder.

    Raises:
        LogError: It cannot be read.
    """
    found = []
    for file in folder.glob(f"checkpoint-*/{FILE_NAMES[0]}"):
        named = _CHECKPOINT.fullmatch(file.parent.name)
        if named and file.is_file():
            found.append((int(named[1]), file))
    return open_source(max(found)[1]) if found else None
