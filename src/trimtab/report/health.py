"""What a watch warns of, as lines on a console, and the routers of one report as a table.

Enters: findings of a run's health and summaries of its routers. Leaves: lines of ASCII. Invariant: where there is
nothing to warn of and no report, nothing is drawn; names and texts of a log are drawn as `plain` text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.findings import Findings
from trimtab.report.lines import draw_table, make_table, number, say, shortened, tell
from trimtab.router_summary import LayerSummary, RouterSummary
from trimtab.text import plain
from trimtab.watched import Severity, WatchFinding

MAX_FINDINGS: Final = 20
"""Findings listed."""

MAX_LAYERS: Final = 8
"""Layers of a report listed, the worst."""

MAX_NOTES: Final = 8
"""Notes on what could not be measured listed."""

MAX_NAME_CHARS: Final = 36
"""Characters that a router's name gets; --json has it whole."""

SEVERITY_STYLES: Final[dict[Severity, str]] = {"critical": "bold red", "warning": "yellow", "notice": "cyan"}

_SCALES: Final = {"sum": "summed over layers", "mean": "mean over layers", "layer": "of a layer"}


def render_health(findings: Findings, *, console: Console) -> None:
    """Draws what a watch warns of, and below it the routers at the first finding about them and at the last report.

    Args:
        findings: What `rewind` found.
        console: Where to draw.
    """
    if findings.health:
        say(console, "")
        _draw_findings(findings.health, console=console)
        more = len(findings.health) - MAX_FINDINGS + findings.health_left_out
        if more > 0:
            say(console, f"and {more} more; --json lists up to 1,000")
    if findings.router_at_finding is not None:
        _draw_routers(findings.router_at_finding, title="Routers at the first finding about them", console=console)
    if findings.router is not None:
        _draw_routers(findings.router, title="Routers at the last report", console=console)
        _draw_legend(findings.router.layers[:MAX_LAYERS], console=console)
        _draw_notes(findings.router.notes, console=console)


def _draw_findings(health: Sequence[WatchFinding], *, console: Console) -> None:
    shown = health[:MAX_FINDINGS]
    width = max(len(str(finding.step)) for finding in shown)
    for finding in shown:
        what = f"{finding.severity:<8}  step {finding.step:>{width}}  {plain(finding.kind)}: {plain(finding.text)}."
        tell(console, what, style=SEVERITY_STYLES[finding.severity])


def _draw_routers(summary: RouterSummary, *, title: str, console: Console) -> None:
    say(console, "")
    steps = (
        f"step {summary.step}" if summary.first_step == summary.step else f"steps {summary.first_step}-{summary.step}"
    )
    whole = ""
    if summary.z is not None and summary.z_scale is not None:
        whole = f", z {number(summary.z)} ({_SCALES[summary.z_scale]})"
    say(console, f"{title}, {steps}{whole}{':' if summary.layers else ''}")
    if not summary.layers:
        return
    say(console, "")
    columns = [heading for heading in _CELLS if any(_CELLS[heading](layer) != "-" for layer in summary.layers)]
    table = make_table([("layer", False), *((heading, True) for heading in columns)], console=console)
    for layer in summary.layers[:MAX_LAYERS]:
        name = shortened(plain(layer.name), MAX_NAME_CHARS)
        table.add_row(Text(name), *(Text(_CELLS[heading](layer)) for heading in columns))
    draw_table(table, console=console)
    more = len(summary.layers) - MAX_LAYERS + summary.layers_left_out
    if more > 0:
        say(console, f"and {more} more layer{'' if more == 1 else 's'}, in better balance; --json lists up to 256")


def _draw_legend(layers: Sequence[LayerSummary], *, console: Console) -> None:
    """What the headings stand for that do not say so, and what their numbers are out of."""
    known = [meaning for heading, meaning in _LEGEND.items() if any(_CELLS[heading](layer) != "-" for layer in layers)]
    if not known:
        return
    experts = {layer.num_experts for layer in layers if layer.num_experts}
    most = f"ln {min(experts)} = {math.log(min(experts)):.4g}" if len(experts) == 1 else "ln E, E experts"
    say(console, "")
    tell(console, "; ".join(known).format(most=most))


def _draw_notes(notes: Sequence[str], *, console: Console) -> None:
    """What of the routers could not be measured."""
    if notes:
        say(console, "")
    for note in notes[:MAX_NOTES]:
        tell(console, f"Note on the routers: {plain(note)}")
    if len(notes) > MAX_NOTES:
        say(console, f"and {len(notes) - MAX_NOTES} more; --json lists up to 100")


def _silent(layer: LayerSummary) -> str:
    if layer.num_silent is None:
        return "-"
    return f"{layer.num_silent}/{layer.num_experts}" if layer.num_experts is not None else str(layer.num_silent)


_CELLS: Final = {
    "z": lambda layer: number(layer.z),
    "balance": lambda layer: number(layer.load_balance),
    "MaxVio": lambda layer: number(layer.max_vio),
    "token H": lambda layer: number(layer.token_entropy),
    "load H": lambda layer: number(layer.load_entropy),
    "silent": _silent,
}
"""What a layer shows, by its heading; a column that would hold dashes alone is left out."""

_LEGEND: Final = {
    "token H": "token H: token entropy in nats, from 0 (sure) to {most} (unsure)",
    "load H": "load H: load entropy in nats, from 0 (one expert has all) to {most} (balance)",
    "silent": "silent: experts without a token in the report, by chance or dead",
}
"""What a heading stands for; see docs/rewind.md."""
