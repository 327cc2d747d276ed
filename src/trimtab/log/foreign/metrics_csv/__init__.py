"""The format of metric files in CSV: a header line that names the columns, then one line a step.

Enters: a path. Leaves: whether it is one, and its source. Invariant: a file is one if its first line that is no comment
names columns among which a training loss or a gradient norm is. What reads it is loaded when a file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.log.foreign import read_head
from trimtab.log.foreign.line_blocks import without_mark
from trimtab.log.foreign.lone_file import lone_file, numbered_files, on_numbered
from trimtab.log.foreign.metrics_csv.header import read_header

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ("metrics.csv",)
"""As Lightning's logger names it."""

MAX_HEADER_BYTES: Final = 1 << 20
"""A header, and the comments above it, take less."""

_VERSION: Final = re.compile(r"version_([0-9]{1,18})")
"""Lightning's logger makes a folder of that name for each run."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first line that is neither blank nor a comment names a loss or a gradient norm.

    Args:
        path: The file; more of it is read where the head does not hold that line.
        head: Its first bytes.

    Raises:
        OSError: The file cannot be read.
    """
    known = _begins_with_header(head)
    if known is None:
        with path.open("rb") as file:
            known = _begins_with_header(file.read(MAX_HEADER_BYTES) + b"\n")
    return bool(known)


def _begins_with_header(data: bytes) -> bool | None:
    """Whether the first line that tells is a header; None where no line does. A header may begin with "#" itself."""
    *lines, _ = without_mark(data).replace(b"\r", b"\n").split(b"\n")
    for line in filter(bytes.strip, lines):
        if read_header(line.decode("utf-8", "replace")) is not None:
            return True
        if not line.lstrip().startswith(b"#"):
            return False
    return None


def open_source(path: Path, *, notices: Sequence[str] = ()) -> Source:
    """Opens a metric file for reading.

    Args:
        path: A file that was recognised.
        notices: What is to be said first.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.metrics_csv.reader import read_csv
    from trimtab.log.foreign.steps.source import StepSource

    return StepSource(
        path, format_name="metrics_csv", read=lambda progress: read_csv(path, progress=progress), notices=notices
    )


def source_in(folder: Path) -> Source | None:
    """The only metric file of the kind in a folder, whatever its name; else that of the newest version of a run.

    Args:
        folder: Any folder; in Lightning's each version of a run has a folder of its own.

    Returns:
        The source; None where there is none.

    Raises:
        LogError: There are several, or it cannot be read.
    """
    file = lone_file(folder, suffix=".csv", recognises=recognises)
    if file is not None:
        return open_source(file)
    found = numbered_files(folder, name=_VERSION, file=FILE_NAMES[0])
    for place, version in enumerate(found):
        if _is_log(version):
            return open_source(version, notices=on_numbered(found, place, folder=folder))
    return None


def _is_log(file: Path) -> bool:
    try:
        return recognises(file, read_head(file))
    except OSError:
        return False
