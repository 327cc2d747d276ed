"""Findings as text for a terminal or a file.

Enters: findings and a rich console. Leaves: lines of ASCII on that console. Invariant: nothing that came from a log is
interpreted, neither as markup nor by the terminal; every value is drawn as `plain` text.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.findings import Findings, RowShare, Spike
from trimtab.report.headline import headline
from trimtab.report.health import SEVERITY_STYLES, render_health
from trimtab.report.lines import WIDE, draw_table, make_table, number, percent, say, shortened, tell, width_of
from trimtab.text import plain

MAX_SPIKES = 20
"""Findings listed."""

MIN_PREVIEW_CHARS = 24
"""Characters that a preview gets, however narrow the line."""

MAX_NAME_CHARS = 24
"""Characters that the user's own id of a row gets; --json has it whole."""

INDENT = "    "
"""Before what stands below a row, so that no text of the data looks like a line of the report."""


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
    render_health(findings, console=console)

    sentences = headline(findings)
    if sentences:
        say(console, "")
        for sentence in sentences:
            tell(console, sentence, style="bold")
        say(console, "")
        _draw_rows(findings, console=console)
    if findings.preview_withheld is not None:
        if not sentences:
            say(console, "")
        tell(console, f"Preview withheld: {plain(findings.preview_withheld)}")
    if findings.notices:
        say(console, "")
    for notice in findings.notices:
        tell(console, f"Note: {plain(notice)}")


def _draw_spikes(spikes: Sequence[Spike], *, console: Console) -> None:
    headings = ["severity", "step", "kind", "value", "baseline", "ratio", "score", "rule"]
    if any(spike.segment is not None for spike in spikes):
        headings.insert(1, "run")
    # A log at step level holds no rows: two columns of dashes would say so on every line.
    if any(spike.row is not None for spike in spikes):
        headings += ["row", "share"]
    if console.width < WIDE:
        # They are sorted by ratio or score, and one that the median rule made has no score.
        headings = [heading for heading in headings if heading not in ("baseline", "rule")]
    left = ("severity", "kind", "rule")
    table = make_table([(heading, heading not in left) for heading in headings], console=console)
    for spike in spikes[:MAX_SPIKES]:
        cells = _spike_cells(spike)
        style = SEVERITY_STYLES[spike.severity]
        table.add_row(*(Text(cells[name], style=style if name == "severity" else "") for name in headings))
    draw_table(table, console=console)


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
    rows = findings.rows
    headings = ["row", "count", "loss", "tokens", "share", "excess"]
    if findings.num_ranks > 1 or any(row.rank for row in rows):
        headings.append("rank")
    if any(row.repetition is not None for row in rows):
        headings.append("repetition")
    names = [
        heading
        for heading, field in (("id", "name"), ("table row", "table_row"))
        if any(getattr(row, field) is not None for row in rows)
    ]
    lines = [_row_cells(row, losses_known=findings.row_losses_known) for row in rows]
    table = _row_table([*headings, *names], lines, console=console)
    if width_of(table, console=console) <= console.width:
        names = []
    else:
        table = _row_table(headings, lines, console=console)
    below = [_below(row, cells, names=names, width=console.width) for row, cells in zip(rows, lines, strict=True)]
    draw_table(table, console=console, below=below)
    if findings.rows_left_out:
        more = "1 more row" if findings.rows_left_out == 1 else f"{findings.rows_left_out} more rows"
        say(console, f"and {more}; --top lists more")


def _row_table(headings: Sequence[str], lines: Sequence[dict[str, str]], *, console: Console) -> Table:
    table = make_table([(heading, heading != "id") for heading in headings], console=console)
    for cells in lines:
        table.add_row(*(Text(cells[name]) for name in headings))
    return table


def _below(row: RowShare, cells: dict[str, str], *, names: Sequence[str], width: int) -> str:
    """What stands below a row: names that have no column of their own, and what it says."""
    told = INDENT + ", ".join(f"{name} {cells[name]}" for name in names if cells[name] != "-")
    if row.preview is None:
        return told.rstrip()
    if told != INDENT:
        told += ": "
    room = max(MIN_PREVIEW_CHARS, width - len(told))
    return told + (shortened(plain(row.preview), room) or "(empty)")


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
    }
