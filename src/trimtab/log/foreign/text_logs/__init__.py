"""What trainers print, kept in a file: Megatron-LM, nanoGPT and its relatives, the trainer of Transformers.

Enters: a path. Leaves: whether a style of `styles` is in it, and its source. Invariant: a log begins with pages of
other things, so a file is searched, up to `SEARCHED_BYTES`, for a line of a step; what reads it is loaded when a file
is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.errors import LogError
from trimtab.log.foreign.text_logs.patterns import Style
from trimtab.log.foreign.text_logs.styles import printed_lines, style_of

if TYPE_CHECKING:
    from trimtab.log.source import Source

FILE_NAMES: Final = ()
"""None: everybody calls them something else."""

SEARCHED_BYTES: Final = 1 << 20
"""Banners, configurations and warnings before the first step take less."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a line of a step, or of an evaluation, stands near the beginning.

    Args:
        path: The file; it is searched where the head does not tell.
        head: Its first bytes.

    Raises:
        OSError: The file cannot be read.
    """
    # The last line of a head may be cut.
    return style_of(printed_lines(head)[:-1]) is not None or _style_in(path) is not None


def open_source(path: Path) -> Source:
    """Opens a text log for reading.

    Args:
        path: A file that was recognised.

    Returns:
        The source; the file is read when something is asked for.

    Raises:
        LogError: The file cannot be read.
    """
    from trimtab.log.foreign.text_logs.source import open_text

    try:
        style = _style_in(path)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error
    if style is None:
        raise LogError(f"{path} changed while it was opened: no line of a step is in it any more. Try again.")
    return open_text(path, style)


def source_in(folder: Path) -> None:
    """None: of all the texts in a folder none is chosen."""


def _style_in(path: Path) -> Style | None:
    with path.open("rb") as file:
        return style_of(printed_lines(file.read(SEARCHED_BYTES)))
