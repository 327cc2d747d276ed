"""The gates of a chunk on a console: a table, what each failed or unknown one says, and the verdict.

Enters: a `GateReport`. Leaves: lines of ASCII. Invariants: the table fits the console, of 40 characters at least, but
for a word that is wider; no figure is cut; what failed is told below the table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.gates.values import GateReport, GateStatus
from trimtab.report.lines import say, tell
from trimtab.text import listed, plain

STATUS_STYLES: Final[dict[GateStatus, str]] = {
    "passed": "green",
    "failed": "bold red",
    "unknown": "yellow",
    "inapplicable": "dim",
}

TOLD_IN_FULL: Final = ("failed", "unknown")
"""What somebody has to do something about stands below the table, where there is room for what to do."""

WIDEST: Final = 100
"""Characters of a line of the table where no terminal says how many it has."""

LEAST_ROOM: Final = 24
"""Characters of a line of a gate's figures from which they stand beside it; below it where there are fewer."""

_GAP: Final = "  "


def draw_gates(report: GateReport, *, strict: bool = False, console: Console) -> None:
    """Draws a report.

    Args:
        report: The gates.
        strict: Whether a gate that is unknown holds the next chunk back.
        console: Where to draw.
    """
    _draw_head(report, console=console)
    say(console, "")
    _draw_table(report, console=console)
    told = [gate for gate in report.gates if gate.status in TOLD_IN_FULL]
    for (status, text), gates in groupby(told, key=lambda gate: (gate.status, gate.text)):
        say(console, "")
        names = listed(gate.name for gate in gates)
        tell(console, f"{status}: {names}: {plain(text)}.", style=STATUS_STYLES[status])
    for notice in report.notices:
        say(console, "")
        tell(console, f"Note: {plain(notice)}")
    say(console, "")
    tell(console, verdict(report, strict=strict), style="bold")


def verdict(report: GateReport, *, strict: bool = False) -> str:
    """How many gates passed, which did not, and whether the next chunk may start.

    Args:
        report: The gates.
        strict: Whether a gate that is unknown holds the next chunk back.
    """
    passed, failed, unknown, inapplicable = (
        report.with_status(status) for status in ("passed", "failed", "unknown", "inapplicable")
    )
    num_applicable = len(report.gates) - len(inapplicable)
    clauses = [f"{len(passed)} of {num_applicable} gates passed"]
    clauses += [
        f"{len(gates)} {status}: {listed(gate.name for gate in gates)}"
        for status, gates in (("failed", failed), ("unknown", unknown))
        if gates
    ]
    counted = "; ".join(clauses)
    if not report.passed(strict=strict):
        return f"{counted}. Do not start the next chunk."
    if unknown:
        return f"{counted}. The next chunk may start; with --strict what is unknown holds it back."
    return f"{counted}. The next chunk may start."


def _draw_head(report: GateReport, *, console: Console) -> None:
    chunk = report.chunk
    run = "a run without an id" if report.run_id is None else f"run {plain(report.run_id)}"
    attempts = "1 attempt" if len(chunk.attempts) == 1 else f"{len(chunk.attempts)} attempts"
    steps = "1 step" if chunk.num_steps == 1 else f"{chunk.num_steps:,} steps"
    tell(console, f"Chunk of {run}: steps {chunk.first_step} to {chunk.last_step}, {steps} recorded in {attempts}")
    tell(console, f"log         {plain(report.source)}")
    if report.checkpoint is not None:
        tell(console, f"checkpoint  {plain(report.checkpoint)}")


def _draw_table(report: GateReport, *, console: Console) -> None:
    """Draws a gate a line, and what does not fit beside it on lines below."""
    width = console.width if console.is_terminal else min(console.width, WIDEST)
    of_status = max(len(gate.status) for gate in report.gates)
    of_name = max(len(gate.name) for gate in report.gates)
    indent = of_status + of_name + 2 * len(_GAP)
    is_beside = width - indent >= LEAST_ROOM
    if not is_beside:
        indent = 2 * len(_GAP)

    def lines_of(status: str, name: str, figures: str) -> list[str]:
        lines = textwrap.wrap(figures, width - indent, break_long_words=False)
        beside = lines.pop(0) if is_beside else ""
        head = _GAP.join([status.ljust(of_status), name.ljust(of_name), beside]).rstrip()
        return [head, *(" " * indent + line for line in lines)]

    heading = lines_of("status", "gate", "figures")[0]
    rows = [lines_of(gate.status, gate.name, text) for gate, text in zip(report.gates, _figures(report), strict=True)]
    say(console, heading)
    say(console, "-" * max(len(line) for lines in rows for line in lines))
    for gate, (head, *below) in zip(report.gates, rows, strict=True):
        row = Text(head)
        row.stylize(STATUS_STYLES[gate.status], 0, len(gate.status))
        console.print(row, soft_wrap=True)
        if is_beside or gate.status not in TOLD_IN_FULL:
            for line in below:
                say(console, line)


def _figures(report: GateReport) -> Iterator[str]:
    """What the table says of each gate; once what several say in the same words."""
    said: dict[str, str] = {}
    for gate in report.gates:
        if gate.status in TOLD_IN_FULL:
            yield "see below"
        elif gate.text in said:
            yield f"as {said[gate.text]}"
        else:
            said[gate.text] = gate.name
            yield plain(gate.text) or "-"
