"""The console: stage lines with the time, one rewritten line on a terminal, nothing but ASCII."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

from trimtab.demo.console import Console, ConsoleHandler, quoted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticking(*seconds: float) -> Iterator[float]:
    yield from seconds


def test_a_stage_tells_the_seconds_since_the_start_and_indents_what_follows() -> None:
    stream, times = io.StringIO(), ticking(100.0, 112.34)

    Console(stream, clock=lambda: next(times)).stage("reading\nmore of it")

    assert stream.getvalue() == "   12.3 s  reading\n           more of it\n"


def test_on_a_terminal_progress_is_rewritten_and_an_ordinary_line_clears_it_first() -> None:
    stream = Terminal()
    console = Console(stream, clock=lambda: 0.0)

    console.progress("step 100")
    console.progress("step 1")
    console.line("done")

    line = "    0.0 s  step 100"
    assert stream.getvalue() == f"\r{line}\r{line[:-2]}  \r{' ' * len(line[:-2])}\rdone\n"


def test_elsewhere_progress_is_a_line_of_its_own() -> None:
    stream = io.StringIO()

    Console(stream, clock=lambda: 0.0).progress("step 30")

    assert stream.getvalue() == "    0.0 s  step 30\n"


def test_what_the_library_logs_becomes_a_stage_line() -> None:
    stream = io.StringIO()
    handler = ConsoleHandler(Console(stream, clock=lambda: 0.0))

    handler.emit(logging.LogRecord("trimtab.guard", logging.WARNING, "", 0, "%d skipped", (3,), None))

    assert stream.getvalue() == "    0.0 s  3 skipped\n"


def test_a_row_is_shown_as_one_short_line_of_ascii() -> None:
    shown = quoted("Return\n  the \x1b[31mred\u202e " + chr(0x6F22) * 100)

    assert shown.startswith('"Return the \\x1b[31mred\\u202e \\u6f22')
    assert shown.endswith('..."')
    assert shown.isascii()
    assert len(shown) == 66
