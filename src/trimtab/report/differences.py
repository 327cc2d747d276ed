"""Where two runs differ, in words.

Enters: `Differences`. Leaves: lines on a console: whether they are the same and in what, the first difference with both
values to their last digit, the columns that differ, what was not compared.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.analysis.difference import Cell, Difference, Differences, Lack
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
        for lack in found.lacks:
            tell(console, lack_in_words(lack), style="bold red")
        if found.first_in_both is not None:
            besides = " besides" if found.lacks else ""
            tell(console, in_words(found.first_in_both, besides=besides), style="bold red")
            _draw_columns(found, console=console)
        alike = [name for name, step in found.columns.items() if step is None]
        if alike:
            say(console, "")
            held = f"the {steps} that both hold" if found.lacks else steps
            tell(console, f"The same in {held}: {', '.join(alike)}")
    if found.notices:
        say(console, "")
    for notice in found.notices:
        tell(console, f"Note: {plain(notice)}")


def lack_in_words(lack: Lack) -> str:
    """The steps that one of the runs lacks as a sentence."""
    if lack.num_steps == 1:
        which = f"step {lack.first}"
    elif lack.num_steps == lack.last - lack.first + 1:
        which = f"steps {lack.first} to {lack.last}"
    else:
        which = f"{lack.num_steps:,} steps between {lack.first} and {lack.last}"
    why = " (a run killed before its log was written?)" if lack.is_end else ""
    return f"{lack.run} lacks {which}{why}"


def in_words(first: Difference, *, besides: str = "") -> str:
    """The first difference in a step that both runs hold, as a sentence; `besides` follows "The runs part"."""
    where = [f"{word} {getattr(first, name)}" for name, word in _PLACES if getattr(first, name) is not None]
    place = ", ".join([f"step {first.step}", *where])
    if first.column in ("rank", "rows.rank"):
        run = "a" if first.a is None else "b"
        what = "rows" if first.column == "rows.rank" else "record of the step"
        return f"The runs part{besides} at step {first.step}: {run} has no {what} from rank {first.rank}"
    return f"The runs part{besides} at {place}: {first.column} is {_cell(first.a)} in a, {_cell(first.b)} in b"


def _cell(cell: Cell) -> str:
    """A value to its last digit: two that differ must not look alike."""
    if cell is None:
        return "nothing"
    return plain(cell) if isinstance(cell, str) else repr(cell)


def _draw_columns(found: Differences, *, console: Console) -> None:
    say(console, "")
    table = make_table([("column", False), ("differs from step", True)], console=console)
    for name, step in found.columns.items():
        if step is not None and name != "step":
            table.add_row(Text(name), Text(str(step)))
    draw_table(table, console=console)
