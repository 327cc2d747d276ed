"""Figures on standard error while a large log is worked on, where a person watches.

Enters: the size of a log. Leaves: a function to call with what is being done. Invariant: nothing reaches a pipe or a
file, and a small log imports nothing for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimtab.report.console import make_console

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
