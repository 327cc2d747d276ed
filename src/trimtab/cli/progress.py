"""Figures on standard error while a large log or checkpoint is worked on, where a person watches.

Enters: the size of what is read. Leaves: a function to call with what is being done. Invariant: nothing reaches a pipe
or a file, and what is small imports nothing for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from trimtab.report.console import make_console
from trimtab.resume.checksum import Progress

_Found = TypeVar("_Found")

FROM_BYTES = 20_000_000
"""Smaller logs are read in about a second."""


@contextmanager
def stage_progress(size_bytes: int) -> Iterator[Callable[[str, int, int], None] | None]:
    """Shows one stage of the work after the other, each in percent of its whole.

    Args:
        size_bytes: Size of the log.

    Yields:
        What to call with the stage in words, how much of it is done, and the whole of it; None where nobody watches.
    """
    if size_bytes < FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    # Imported here: it is a tenth of the time that a small log takes, which never shows a bar.
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    # Figures, no bar: rich draws one with characters that are no ASCII.
    columns = (TextColumn("{task.description}"), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage, num_done, num_all: bar.update(task, description=stage, completed=num_done, total=num_all)


def with_progress(places: Sequence[Path], work: Callable[[Progress | None], _Found]) -> _Found:
    """Does a piece of work that reads files, with figures on a terminal where they are large.

    Args:
        places: The files and folders that are read.
        work: Gets what to call with how many more bytes were read; None where nobody watches.

    Returns:
        What the work gives.
    """
    size_bytes = sum(map(_size, places))
    with stage_progress(size_bytes) as show:
        if show is None:
            return work(None)
        say = show
        num_done = 0

        def read(num_bytes: int) -> None:
            nonlocal num_done
            num_done += num_bytes
            say("reading", min(num_done, size_bytes), size_bytes)

        return work(read)


def _size(place: Path) -> int:
    """Bytes of a file, or of all files below a folder; those that vanish meanwhile count nothing."""
    if place.is_file():
        return place.stat().st_size
    num_bytes = 0
    for base, _, files in os.walk(place):
        for file in files:
            with suppress(OSError):
                num_bytes += Path(base, file).lstat().st_size
    return num_bytes
