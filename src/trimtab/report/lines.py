"""Lines and tables on a console: how every report draws a sentence, a number and a row of a table.

Enters: plain text and a rich console. Leaves: lines of ASCII on that console. Invariant: no line ends in blanks, a line
of a table is one line however narrow the console, and a text is never cut inside of an escape.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from trimtab.values import json_number

WIDE: Final = 96
"""Characters a line from which every column of the findings and of a calibration fits."""

# Columns are told apart by space alone: with lines the findings do not fit into 80 characters.
_PLAIN_BOX: Final = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

_UNBOUNDED: Final = 100_000
"""Characters for a table to be as wide as it is: rich would fold its cells into lines, ids among them."""

_CUT: Final = " ... "
"""What stands between the parts of a preview."""

_MAX_PARTS: Final = 3
"""Parts of a preview: its start, the span that it repeats, its end."""

_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])")
"""What `trimtab.text.plain` makes of a character that is not printable ASCII."""

_LONGEST_ESCAPE: Final = 10


def say(console: Console, line: str, *, style: str = "") -> None:
    """One line as it stands, however narrow the console; the text must be plain already."""
    console.print(Text(line, style=style), soft_wrap=True)


def tell(console: Console, sentence: str, *, style: str = "", indent: str = "") -> None:
    """A sentence: in a terminal broken between words, elsewhere one line, as a program looks for it.

    Args:
        console: Where to draw.
        sentence: Plain text; a path in it stays whole.
        style: As for rich.
        indent: Blanks before each line.
    """
    if not console.is_terminal:
        say(console, indent + sentence, style=style)
        return
    for line in textwrap.wrap(
        sentence,
        console.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        say(console, line, style=style)


def make_table(columns: Sequence[tuple[str, bool]], *, console: Console) -> Table:
    """An empty table; `columns` are headings, and whether the column holds numbers."""
    table = Table(box=_PLAIN_BOX, padding=(0, 2 if console.width >= WIDE else 1, 0, 0), pad_edge=False, show_edge=False)
    for heading, is_number in columns:
        table.add_column(heading, justify="right" if is_number else "left")
    return table


def width_of(table: Table, *, console: Console) -> int:
    """Characters that a table takes."""
    return Measurement.get(console, console.options.update_width(_UNBOUNDED), table).maximum


def draw_table(table: Table, *, console: Console, below: Sequence[str] = ()) -> None:
    """Draws a table, each row on one line.

    Args:
        table: What `make_table` has made, with rows of one line each.
        console: Where to draw.
        below: For each row what stands on a line of its own below it, plain; "" for nothing.
    """
    heading, rule, *rows = _lines(table, console=console)
    for line in (heading, rule):
        console.print(line, soft_wrap=True)
    for place, line in enumerate(rows):
        console.print(line, soft_wrap=True)
        if place < len(below) and below[place]:
            say(console, below[place])


def number(value: float | None) -> str:
    """A number in at most five digits; a dash where there is none."""
    shown = json_number(value)
    if shown is None:
        return "-"
    return shown if isinstance(shown, str) else f"{shown:.5g}"


def percent(share: float | None) -> str:
    """A share in percent, one decimal; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def shortened(text: str, room: int) -> str:
    """A plain text in so many characters: of each part between "..." as much of the start as of the others.

    Args:
        text: The text.
        room: Characters, 20 at least.
    """
    if len(text) <= room:
        return text
    parts = text.split(_CUT)
    if len(parts) == 1:
        return _start(text, room - 3) + "..."
    if len(parts) > _MAX_PARTS:  # of a text that is full of them
        parts = [parts[0], parts[-1]]
    each = (room - len(_CUT) * (len(parts) - 1)) // len(parts)
    # The last part is the row's end: its own end is what it is there for.
    return _CUT.join([*(_start(part, each) for part in parts[:-1]), _end(parts[-1], each)])


def _lines(table: Table, *, console: Console) -> Iterator[Text]:
    for segments in console.render_lines(table, console.options.update_width(_UNBOUNDED), pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        yield line


def _start(text: str, num_chars: int) -> str:
    return text[: _whole(text, num_chars)[0]]


def _end(text: str, num_chars: int) -> str:
    return text[_whole(text, max(0, len(text) - num_chars))[1] :]


def _whole(text: str, place: int) -> tuple[int, int]:
    """Where the escape begins and ends that a place lies in; the place itself, twice, where it lies in none."""
    for found in _ESCAPE.finditer(text, max(0, place - _LONGEST_ESCAPE + 1), place + _LONGEST_ESCAPE):
        if found.start() < place < found.end():
            return found.span()
    return place, place
