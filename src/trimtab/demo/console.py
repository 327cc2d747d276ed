"""Lines of the demo's story, with the time, and one line of progress that is rewritten on a terminal.

Enters: text. Leaves: plain ASCII lines on one stream. Progress goes into one rewritten line where the stream is a
terminal, else into a line now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console as RichConsole

from trimtab.report.console import make_console
from trimtab.text import plain


class Console:
    """Where the demo speaks."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts the clock.

        Args:
            stream: Where lines go.
            clock: Seconds, from any start.
        """
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._open_chars = 0
        self.is_terminal = stream.isatty()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this console was made."""
        return self._clock() - self._started

    def line(self, text: str = "") -> None:
        """Writes text as it stands, on lines of its own."""
        self.close_progress()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def stage(self, text: str) -> None:
        """Writes what is being done, with the seconds passed; further lines are indented below the first."""
        first, *rest = text.split("\n")
        self.line(f"{self.elapsed_s:7.1f} s  {first}")
        for more in rest:
            self.line(f"{'':11}{more}")

    def progress(self, text: str) -> None:
        """Rewrites the progress line on a terminal; an ordinary line elsewhere."""
        if not self.is_terminal:
            self.stage(text)
            return
        line = f"{self.elapsed_s:7.1f} s  {text}"
        self._stream.write("\r" + line.ljust(self._open_chars))
        self._stream.flush()
        self._open_chars = len(line)

    def as_rich(self) -> RichConsole:
        """A console for reports on the same stream, which interprets nothing."""
        self.close_progress()
        return make_console(self._stream)

    def close_progress(self) -> None:
        """Takes the rewritten line off the terminal."""
        if self._open_chars:
            self._stream.write("\r" + " " * self._open_chars + "\r")
            self._open_chars = 0


class ConsoleHandler(logging.Handler):
    """Brings what the library says while it works into the story, so that it never lands inside the progress line."""

    def __init__(self, console: Console) -> None:
        """Logs to `console`."""
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record as one stage line."""
        self._console.stage(record.getMessage())


def quoted(text: str, *, num_chars: int = 64) -> str:
    """A row's text as it is safe to print anywhere: one line of ASCII in double quotes, cut after `num_chars`.

    Example:
        >>> quoted("Return the   value")
        '"Return the value"'
    """
    spelled = plain(" ".join(text.split()))
    return f'"{spelled}"' if len(spelled) <= num_chars else f'"{spelled[: num_chars - 3]}..."'
