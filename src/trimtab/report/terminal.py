"""Findings as text for a terminal or a file.

Enters: findings and a rich console. Leaves: lines of ASCII on that console. Invariant: nothing that came from a log is
interpreted, neither as markup nor by the terminal; every value is drawn as `plain` text.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.findings import Findings, RowShare, Spike
from trimtab.report.headline import headline
from trimtab.text import plain
from trimtab.values import json_number

MAX_SPIKES = 20
"""Findings listed."""

WIDE = 96
"""Characters a line from which every column of the findings fits; below, baseline and rule are left out: the findings
are sorted by ratio or score, and one that the median rule made has no score."""

MIN_PREVIEW_CHARS = 32
"""Characters that a preview gets, however narrow the line."""

MAX_NAME_CHARS = 24
"""Characters that the user's own id of a row gets in the table; --json has it whole."""

CUT = " ... "
"""What stands between the parts of a preview."""

SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "notice": "cyan"}

# Columns are told apart by space alone: with lines the findings do not fit into 80 characters.
PLAIN_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def render(findings: Findings, *, console: Console) -> None:
    """Draws the findings of one run.

    Args:
        findings: What `rewind` found.
        console: Where to draw; made without markup, emoji and highlighting it draws the same everywhere.
    """
    name = findings.run_id or findings.source
    steps = "1 step" if findings.num_steps == 1 else f"{findings.num_steps} steps"
    say(console, f"Run {plain(name)}: {steps}, rule {findings.rule}", style="bold")
    if findings.run_id:
        say(console, f"read from {plain(findings.source)}")
    say(console, "")

    if findings.spikes:
        _draw_spikes(findings.spikes, console=console)
        more = len(findings.spikes) - MAX_SPIKES + findings.spikes_left_out
        if more > 0:
            say(console, f"and {more} more; --json lists up to 1,000")
    else:
        none = "its one step is not" if findings.num_steps == 1 else f"none of the {steps} is"
        say(console, f"No spike: {none} out of line.")

    sentences = headline(findings)
    if sentences:
        say(console, "")
        for sentence in sentences:
            say(console, sentence, style="bold")
        say(console, "")
        _draw_rows(findings, console=console)
        if findings.preview_withheld is not None:
            say(console, f"Preview withheld: {plain(findings.preview_withheld)}")
    if findings.notices:
        say(console, "")
    for notice in findings.notices:
        say(console, f"Note: {plain(notice)}")


def say(console: Console, line: str, *, style: str = "") -> None:
    """One line as it stands, however narrow the console; the text must be plain already."""
    console.print(Text(line, style=style), soft_wrap=True)


def make_table(columns: Sequence[tuple[str, bool]], *, console: Console) -> Table:
    """An empty table; `columns` are headings, and whether the column holds numbers."""
    table = Table(box=PLAIN_BOX, padding=(0, 2 if console.width >= WIDE else 1, 0, 0), pad_edge=False, show_edge=False)
    for heading, is_number in columns:
        # "fold" cuts a long cell into lines; the other ways mark the cut with a character that is not ASCII.
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    return table


def number(value: float | None) -> str:
    """A number in at most five digits; a dash where there is none."""
    shown = json_number(value)
    if shown is None:
        return "-"
    return shown if isinstance(shown, str) else f"{shown:.5g}"


def percent(share: float | None) -> str:
    """A share in percent, one decimal; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _draw_spikes(spikes: Sequence[Spike], *, console: Console) -> None:
    headings = ["severity", "step", "kind", "value", "baseline", "ratio", "score", "rule"]
    if any(spike.segment is not None for spike in spikes):
        headings.insert(1, "run")
    # A log at step level holds no rows: two columns of dashes would say so on every line.
    if any(spike.row is not None for spike in spikes):
        headings += ["row", "share"]
    if console.width < WIDE:
        headings = [heading for heading in headings if heading not in ("baseline", "rule")]
    left = ("severity", "kind", "rule")
    table = make_table([(heading, heading not in left) for heading in headings], console=console)
    for spike in spikes[:MAX_SPIKES]:
        cells = _spike_cells(spike)
        style = SEVERITY_STYLES[spike.severity]
        table.add_row(*(Text(cells[name], style=style if name == "severity" else "") for name in headings))
    console.print(table)


def _spike_cells(spike: Spike) -> dict[str, str]:
    return {
        "severity": spike.severity,
        "run": "-" if spike.segment is None else str(spike.segment),
        "step": str(spike.step) if spike.first == spike.last else f"{spike.first}-{spike.last}",
        "kind": "nonfinite norm" if spike.kind == "nonfinite" and spike.signal == "grad_norm" else spike.kind,
        "value": number(spike.value),
        "baseline": number(spike.baseline),
        # How many times the baseline a NaN or an infinity is, nobody can say.
        "ratio": "-" if spike.kind == "nonfinite" else number(spike.ratio),
        "score": number(spike.score),
        "rule": spike.rule,
        "row": "-" if spike.row is None else str(spike.row),
        "share": percent(spike.row_share),
    }


def _draw_rows(findings: Findings, *, console: Console) -> None:
    headings = ["row", "count", "loss", "tokens", "share", "excess"]
    if findings.num_ranks > 1 or any(row.rank for row in findings.rows):
        headings.append("rank")
    # What only some logs hold, and only data tells, comes last, the widest at the end.
    also = (("id", "name"), ("table row", "table_row"), ("repetition", "repetition"), ("preview", "preview"))
    headings += [heading for heading, field in also if any(getattr(row, field) is not None for row in findings.rows)]
    lines = [_row_cells(row, losses_known=findings.row_losses_known) for row in findings.rows]
    room = _room_for_previews(headings, lines, console=console)
    table = make_table([(heading, heading not in ("id", "preview")) for heading in headings], console=console)
    for cells in lines:
        cells["preview"] = shortened(cells["preview"], room)
        table.add_row(*(Text(cells[name]) for name in headings))
    console.print(table)
    if findings.rows_left_out:
        more = "1 more row" if findings.rows_left_out == 1 else f"{findings.rows_left_out} more rows"
        say(console, f"and {more}; --top lists more")


def _row_cells(row: RowShare, *, losses_known: bool) -> dict[str, str]:
    unmeasured = "no supervised tokens" if losses_known else "not recorded"
    return {
        "row": str(row.row),
        "count": str(row.count),
        "loss": unmeasured if row.loss is None else number(row.loss),
        "tokens": str(row.tokens),
        "share": "-" if row.loss is None else percent(row.share),
        "excess": "-" if row.excess is None else f"{row.excess:+.5g}",
        "rank": str(row.rank),
        "id": "-" if row.name is None else shortened(plain(row.name), MAX_NAME_CHARS),
        "table row": "-" if row.table_row is None else str(row.table_row),
        "repetition": "-" if row.repetition is None else f"{row.repetition:.2f}",
        "preview": "-" if row.preview is None else plain(row.preview),
    }


def _room_for_previews(headings: Sequence[str], lines: Sequence[dict[str, str]], *, console: Console) -> int:
    """Characters of a line that the other columns leave; a preview takes one line, in a narrow terminal more."""
    gap = 3 if console.width >= WIDE else 2  # its padding, and the blank that divides it from the next
    others = [name for name in headings if name != "preview"]
    taken = sum(max(len(name), *(len(cells[name]) for cells in lines)) + gap for name in others)
    return max(MIN_PREVIEW_CHARS, console.width - taken)


def shortened(text: str, room: int) -> str:
    """A text in so many characters: of each of its parts between "..." as much of the start as of the others."""
    if len(text) <= room:
        return text
    parts = text.split(CUT)
    if len(parts) == 1:
        return text[: room - 3] + "..."
    each = max(1, (room - len(CUT) * (len(parts) - 1)) // len(parts))
    # The last part is the row's end: its own end is what it is there for.
    return CUT.join([*(part[:each] for part in parts[:-1]), parts[-1][-each:]])[:room]
