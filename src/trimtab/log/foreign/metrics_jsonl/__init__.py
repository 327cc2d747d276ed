"""The format of metric files in JSONL: one object a line, with whatever keys its writer chose.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is one if an object near its beginning has
a loss or a gradient norm under a name that is known. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.log.foreign.lone_file import lone_file
from trimtab.log.foreign.objects import has_metric, objects_near_beginning

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ("metrics.jsonl",)


def recognises(path: Path, head: bytes) -> bool:
    """Whether one of the first lines is an object with a loss or a gradient norm.

    Args:
        path: The file; more of it is read where the head does not tell.
        head: Its first bytes.

    Raises:
        OSError: The file cannot be read.
    """
    return b"{" in head and any(map(has_metric, objects_near_beginning(path)))


def open_source(path: Path) -> Source:
    """Opens a metric file for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.metrics_jsonl.reader import read_jsonl
    from trimtab.log.foreign.steps.source import StepSource

    return StepSource(path, format_name="metrics_jsonl", read=lambda progress: read_jsonl(path, progress=progress))


def source_in(folder: Path) -> Source | None:
    """The only metric file of the kind in a folder, whatever its name; None where there is none.

    Args:
        folder: Any folder.

    Raises:
        LogError: There are several, or it cannot be read.
    """
    file = lone_file(folder, suffix=".jsonl", recognises=recognises)
    return None if file is None else open_source(file)
