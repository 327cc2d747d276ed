"""The format `rewind.jsonl`: one header line, then one JSON object a micro-batch.

Enters: a path. Leaves: whether it is one, and its source. Invariant: whether a file is one is told by its content: a
header or a micro-batch near its beginning, whatever stands before it. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.log.foreign.rewind_jsonl.lines import first_record, is_record

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ("rewind.jsonl", "rewind.jsonl.1")
"""The newer run first: the tool that writes them renames the older one."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a line near the beginning is a header or a micro-batch.

    Args:
        path: The file; it is searched where the head does not tell.
        head: Its first bytes.

    Raises:
        OSError: The file cannot be read.
    """
    first, end, _ = head.partition(b"\n")
    # A line without an end goes on behind the head: a micro-batch of many rows.
    return bool(end and is_record(first)) or first_record(path) is not None


def open_source(path: Path) -> Source:
    """Opens a `rewind.jsonl` for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when records are asked for.

    Raises:
        LogError: The file cannot be read, or its header is of another version.
    """
    from trimtab.log.foreign.rewind_jsonl.source import RewindSource

    return RewindSource(path)


def source_in(folder: Path) -> None:
    """None: a log of this format has its name."""
