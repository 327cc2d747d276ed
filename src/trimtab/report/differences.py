"""Where two runs differ, in words.

Enters: `Differences`. Leaves: lines on a console: whether they are the same and in what, the first difference with both
values to their last digit, the columns that differ, what was not compared.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.analysis.difference import Cell, Difference, Differences
from trimtab.report.lines import draw_table, make_table, say, tell
from trimtab.text import plain

_PLACES: Final = (("rank", "rank"), ("micro", "micro-batch"), ("row", "row"))


def render(found: Differences, *, console: Console) -> None:
    """Draws what a comparison found."""
    say(console, f"a: {plain(found.a)}")
    say(console, f"b: {plain(found.b)}")
    say(console, "")
    steps = "1 step" if found.num_steps == 1 else f"{found.num_steps:,} steps"
    if found.first is None:
        tell(console, f"The same, bit for bit, in {steps}: {', '.join(found.columns)}", style="bold green")
    else:
        tell(console, in_words(found.first), style="bold red")
        _draw_columns(found, console=console)
        alike = [name for name, step in found.columns.items() if step is None]
        if alike:
            say(console, "")
            tell(console, f"The same in {steps}: {', '.join(alike)}")
    if found.notices:
        say(console, "")
    for notice in found.notices:
        tell(console, f"Note: {plain(notice)}")


def in_words(first: Difference) -> str:
    """The first difference as a sentence."""
    if first.column == "step":
        run = "b" if first.b is None else "a"
        return f"The runs part at step {first.step}: {run} does not hold it"
    where = [f"{word} {getattr(first, name)}" for name, word in _PLACES if getattr(first, name) is not None]
    place = ", ".join([f"step {first.step}", *where])
    return f"The runs part at {place}: {first.column} is {_cell(first.a)} in a, {_cell(first.b)} in b"


def _cell(cell: Cell) -> str:
    """A value to its last digit: two that differ must not look alike."""
    if cell is None:
        return "nothing"
    return plain(cell) if isinstance(cell, str) else repr(cell)


def _draw_columns(found: Differences, *, console: Console) -> None:
    say(console, "")
    table = make_table([("column", False), ("differs from step", True)], console=console)
    for name, step in found.columns.items():
        if step is not None:
            table.add_row(Text(name), Text(str(step)))
    draw_table(table, console=console)
