"""Where a verb writes: the console for people, files and standard output for programs.

Invariant: a file is there whole or not at all, it lies below the current folder, and nothing is written through a
link.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

STANDARD_OUTPUT = "-"
PIPE_WIDTH = 120
"""Characters a line where no terminal gives a width."""


def make_console() -> Console:
    """A console on standard output that interprets nothing and draws ASCII only."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return _PlainConsole(markup=False, emoji=False, highlight=False, width=width)


class _PlainConsole(Console):
    """Leaves a closed pipe to the command line; rich would end the process with the code for "nothing readable"."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class OutputFile(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on, for checkers only
    """A file that a verb may write: `-`, or a path below the current folder that is neither a link nor a folder.

    Args:
        allow_standard_output: Whether `-` means standard output.
    """

    name = "file"

    def __init__(self, *, allow_standard_output: bool) -> None:
        self._allow_standard_output = allow_standard_output

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks a path before any work is done for it."""
        if value == STANDARD_OUTPUT:
            if not self._allow_standard_output:
                self.fail("- is standard output, which this option does not write to. Name a file.", param, ctx)
            return value
        if "\0" in value:
            self.fail(f"{value!r} cannot be a file name.", param, ctx)
        path, here = Path(value), Path.cwd().resolve()
        try:
            folder = path.parent.resolve()
            if path.is_symlink():
                self.fail(f"{value} is a symbolic link, and would be written through. Name a plain file.", param, ctx)
            if path.is_dir():
                self.fail(f"{value} is a folder. Name a file in it.", param, ctx)
            if not folder.is_relative_to(here):
                self.fail(f"{value} is outside the current folder {here}. Name a file below it.", param, ctx)
            if not folder.is_dir():
                self.fail(f"the folder {path.parent} of {value} does not exist. Make it first.", param, ctx)
        except (OSError, ValueError) as error:
            self.fail(f"{value} cannot be a file name here ({error}).", param, ctx)
        return value


def write_output(destination: str, text: str) -> None:
    """Writes a text to a checked destination: to standard output, or to a file, whole or not at all.

    Raises:
        OSError: The file cannot be written; what stood there before still does.
    """
    if destination == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    path = Path(destination)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is its owner's alone; a report is as readable as any file made here.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
