"""The format of metric files in CSV: a header line that names the columns, then one line a step.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is one if its first line names columns
among which a training loss or a gradient norm is. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.log.foreign.csv_header import read_header
from trimtab.log.foreign.lone_file import lone_file

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ("metrics.csv",)
"""As Lightning's logger names it."""

MAX_HEADER_BYTES: Final = 1 << 20
"""A longer first line is no header."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first line that is not blank names a loss or a gradient norm.

    Args:
        path: The file; its first line is read where the head does not hold it.
        head: Its first bytes.

    Raises:
        OSError: The file cannot be read.
    """
    text = head.lstrip()
    if b"\n" not in text:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES).lstrip()
    header = read_header(text.partition(b"\n")[0].decode("utf-8", "replace"))
    return header is not None


def open_source(path: Path) -> Source:
    """Opens a metric file for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.csv_reader import read_csv
    from trimtab.log.foreign.step_source import StepSource

    return StepSource(path, read=lambda progress: read_csv(path, progress=progress))


def source_in(folder: Path) -> Source | None:
    """The only metric file of the kind in a folder, whatever its name; None where there is none.

    Args:
        folder: Any folder.

    Raises:
        LogError: There are several, or it cannot be read.
    """
    file = lone_file(folder, suffix=".csv", recognises=recognises)
    return None if file is None else open_source(file)
