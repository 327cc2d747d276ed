"""Which files a command has written, and what is in them.

Enters: a file as the user named it, and what was written to it. Leaves: a line on a console. Invariant: no file is
written without a line that says so; a list of rows that is empty says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from trimtab.report.lines import tell
from trimtab.text import plain

MAX_REASONS: Final = 3
"""Findings told of which no row is listed."""


def say_written(console: Console, path: str, *, what: str = "") -> None:
    """Says that a file was written.

    Args:
        console: Where to say it.
        path: The file.
        what: What is in it, plain; "" where the file's name says it.
    """
    tell(console, f"Wrote {plain(path)}{': ' if what else ''}{what}")


def drop_list_in_words(document: Mapping[str, Any], *, path: str) -> str:
    """How many rows the drop list at a path holds, and what takes it; of an empty one why it is, by step."""
    num_rows, findings = len(document["rows"]), document["findings"]
    if num_rows:
        rows = "1 row" if num_rows == 1 else f"{num_rows} rows"
        return f'{rows} to leave out, with attach(trainer, exclude="{plain(path)}")'
    if not findings:
        return "no row to leave out: no step is out of line"
    reasons = [f"step {finding['step']}: {finding['reason']}" for finding in findings[:MAX_REASONS]]
    more = len(findings) - len(reasons)
    return "no row to leave out. " + "; ".join([*reasons, *([f"and {more} more"] if more else [])])
