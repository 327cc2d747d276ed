"""One row of a run: where it occurred, and all of it that is at hand.

Enters: a `RowHistory`, and the row's text or why it is withheld. Leaves: lines of ASCII on a console. Invariant: as in
`terminal`; a line break of the text begins a line that is set in, so that no text looks like a line of the report.
"""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.analysis.row_history import RowHistory, Visit
from trimtab.dataset.row_text import RowText
from trimtab.report.lines import draw_table, make_table, number, say, tell
from trimtab.text import MAX_CHARACTERS, plain

MAX_FIELD_CHARS: Final = 100_000
"""Characters of a field that are shown; of a longer one as much of its start as of its end."""

_INDENT: Final = "    "


def render_row(
    history: RowHistory,
    *,
    text: RowText | None,
    repetition: float | None,
    source: str | None,
    withheld: str | None,
    console: Console,
) -> None:
    """Draws a row.

    Args:
        history: Where it occurred.
        text: What it says; None where it is not at hand.
        repetition: How repetitive it is; None likewise.
        source: Where it was read, as words; None likewise.
        withheld: Why it is not at hand; None where it is, or was not asked for.
        console: Where to draw.
    """
    say(console, f"Row {row_in_words(history.row, name=history.name, table_row=history.table_row)}", style="bold")
    _draw_visits(history, console=console)
    if withheld is not None:
        say(console, "")
        tell(console, f"Preview withheld: {plain(withheld)}")
    if text is None:
        return
    say(console, "")
    fields = "1 field" if len(text.fields) == 1 else f"{len(text.fields)} fields"
    read = "" if source is None else f"; read from {plain(source)}"
    tell(console, f"{fields}, repetition {number(repetition)}{read}")
    for name, content in text.fields:
        _draw_field(name, content, console=console)


def row_in_words(row: int, *, name: str | None, table_row: int | None) -> str:
    """A row's number, and what else it is known by: `17 (id abc, row 4031 of the table)`."""
    also = [f"id {plain(name)}"] if name is not None else []
    also += [f"row {table_row} of the table"] if table_row is not None else []
    return f"{row} ({', '.join(also)})" if also else str(row)


def _draw_visits(history: RowHistory, *, console: Console) -> None:
    if not history.count:
        say(console, "It occurs nowhere in this log.")
        return
    times = "once" if history.count == 1 else f"{history.count} times"
    if history.num_steps < history.count:
        times += f" in {history.num_steps} step{'' if history.num_steps == 1 else 's'}"
    tell(console, f"It occurs {times}; mean loss {number(history.mean_loss)}{_extremes(history)}.")
    if history.visits_left_out:
        say(console, f"The last {len(history.visits)}:")
    say(console, "")
    table = make_table([(heading, True) for heading in ("step", "loss", "tokens")] + [("", False)], console=console)
    for visit in history.visits:
        loss = "no supervised tokens" if visit.loss is None else number(visit.loss)
        left_out = "left out by the guard" if visit.left_out else ""
        table.add_row(*map(Text, (str(visit.step), loss, str(visit.tokens), left_out)))
    draw_table(table, console=console)


def _extremes(history: RowHistory) -> str:
    if history.count == 1:
        return ""
    told = (("best", history.best), ("worst", history.worst))
    return "".join(f", {which} {_at(visit)}" for which, visit in told if visit is not None)


def _at(visit: Visit) -> str:
    return f"{number(visit.loss)} at step {visit.step}"


def _draw_field(name: str, content: str, *, console: Console) -> None:
    half = MAX_FIELD_CHARS // 2
    parts = [content] if len(content) <= MAX_FIELD_CHARS else [content[:half], content[-half:]]
    say(console, "")
    say(console, f"{plain(name) or 'row'}:", style="bold")
    for index, part in enumerate(parts):
        if index:
            say(console, f"{_INDENT}... {len(content) - 2 * half} characters are left out here ...")
        for line in part.split("\n"):
            say(console, _INDENT + _plain_line(line))


def _plain_line(line: str) -> str:
    """A line in printable ASCII, however long: `plain` cuts a text, and here it is to be shown whole."""
    return "".join(plain(line[at : at + MAX_CHARACTERS]) for at in range(0, len(line), MAX_CHARACTERS))
