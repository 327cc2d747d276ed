"""The gates of a chunk on a console: a table, what each failed or unknown one says, and the verdict.

Enters: a `GateReport`. Leaves: lines of ASCII. Invariant: the lines of the table fit a console of 80 characters, each
gate on one, and what failed is told in full below its line.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.gates.values import Gate, GateReport, GateStatus
from trimtab.report.lines import WIDE, draw_table, make_table, say, shortened, tell
from trimtab.text import listed, plain

STATUS_STYLES: Final[dict[GateStatus, str]] = {
    "passed": "green",
    "failed": "bold red",
    "unknown": "yellow",
    "inapplicable": "dim",
}

TOLD_IN_FULL: Final = ("failed", "unknown")
"""What somebody has to do something about stands below its line, whole; of the others as much as fits."""

LEAST_ROOM: Final = 24
"""Characters of a gate's figures shown at least, however narrow the console."""


def draw_gates(report: GateReport, *, strict: bool = False, console: Console) -> None:
    """Draws a report.

    Args:
        report: The gates.
        strict: Whether a gate that is unknown holds the next chunk back.
        console: Where to draw.
    """
    _draw_head(report, console=console)
    say(console, "")
    headings = ("status", "gate", "figures")
    table = make_table([(heading, False) for heading in headings], console=console)
    room = _room(report, console=console)
    for gate in report.gates:
        cells = (Text(gate.status, style=STATUS_STYLES[gate.status]), Text(gate.name), Text(_figures(gate, room)))
        table.add_row(*cells)
    draw_table(table, console=console)
    if any(gate.status not in TOLD_IN_FULL and len(plain(gate.text)) > room for gate in report.gates):
        tell(console, "... stands for figures that do not fit; --json has them whole.")
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


def _room(report: GateReport, *, console: Console) -> int:
    """Characters for the figures of a gate."""
    gap = 3 if console.width >= WIDE else 2
    others = sum(gap + max(map(len, cells)) for cells in _columns(report))
    return max(console.width - others, LEAST_ROOM)


def _columns(report: GateReport) -> tuple[list[str], list[str]]:
    return ["status", *(gate.status for gate in report.gates)], [gate.name for gate in report.gates] or ["gate"]


def _figures(gate: Gate, room: int) -> str:
    return "see below" if gate.status in TOLD_IN_FULL else shortened(plain(gate.text), room)
