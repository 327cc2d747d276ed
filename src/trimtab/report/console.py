"""The console that reports are drawn on: plain ASCII, nothing interpreted, of a width that shows something.

Enters: a stream and the environment. Leaves: a rich console. Invariant: neither `COLUMNS` nor a terminal that says it
is 0 wide makes a report vanish, and a closed pipe is the caller's to handle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console

PIPE_WIDTH = 120
"""Characters a line where nothing gives a width."""

WIDTHS = range(40, 1001)
"""Widths taken at their word: below, a table has no room for its columns, and rich draws nothing at all at 0; above,
every line is filled up with megabytes of blanks. What is less or more counts as the nearest of them."""

HEIGHT = 25
"""Reports do not depend on it; left out, rich would look for one in `LINES`."""


def make_console(stream: TextIO, *, environ: Mapping[str, str] | None = None) -> Console:
    """A console on a stream that draws plain ASCII.

    Args:
        stream: Where to draw.
        environ: Its `COLUMNS` comes before what a terminal says of its width; text that is no number does not count.
    """
    wanted = _columns(environ) or _terminal_width(stream) or PIPE_WIDTH
    width = min(max(wanted, WIDTHS[0]), WIDTHS[-1])
    return _PlainConsole(file=stream, markup=False, emoji=False, highlight=False, width=width, height=HEIGHT)


class _PlainConsole(Console):
    """Leaves a closed pipe to the command line; rich would end the process with the code for "nothing readable"."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _columns(environ: Mapping[str, str] | None) -> int:
    """What `COLUMNS` says; 0 where it says nothing that can be a width. Digits beyond ten are no width either."""
    said = (os.environ if environ is None else environ).get("COLUMNS", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 10 else 0


def _terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind a stream; 0 where there is none, and where it does not know itself."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0
