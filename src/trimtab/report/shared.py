"""What several runs have in common, in words.

Enters: several runs side by side. Leaves: lines on a console. Invariant: only the same rows, or the same
steps where no rows are known, are called the data's doing.
"""

from __future__ import annotations

from rich.console import Console

from trimtab.findings import Comparison, SharedSpike
from trimtab.report.lines import say, tell

MAX_SHARED = 20
"""Shared spikes listed."""


def render_shared(found: Comparison, *, console: Console) -> None:
    """Draws what spikes in two of the runs or more."""
    shared, num_runs = found.shared, found.num_different
    say(console, "")
    if num_runs == 1:
        say(console, "These are logs of one run: there is nothing to compare.")
        return
    if not shared:
        say(console, f"No step and no leading row is out of line in more than one of the {num_runs} runs.")
    for spike in shared[:MAX_SHARED]:
        tell(console, _in_words(spike, num_runs=num_runs))
    if len(shared) > MAX_SHARED:
        more = len(shared) - MAX_SHARED
        say(console, f"and {more} more shared spike{'' if more == 1 else 's'}; --json lists them")


def _in_words(spike: SharedSpike, *, num_runs: int) -> str:
    runs = f"in {len(spike.runs)} of {num_runs} runs"
    rows = ("row " if len(spike.rows) == 1 else "rows ") + ", ".join(map(str, spike.rows))
    if spike.step is None:
        return f"{rows}, at different steps: the same rows spike {runs}: the data's doing"
    steps = f"Step {spike.step}" if spike.last in (None, spike.step) else f"Steps {spike.step}-{spike.last}"
    if spike.rows:
        return f"{steps}, {rows}: the same rows spike {runs}: the data's doing"
    if spike.last is not None:
        return f"{steps}: spikes {runs} that begin or peak at different steps. {_on_peaks(spike)}"
    if spike.rows_known:
        return f"Step {spike.step} spikes {runs}, but at other rows: not the data's doing"
    return (
        f"Step {spike.step} spikes {runs}; the rows are known of one of them at most. In the same data order that is "
        "the data's doing"
    )


def _on_peaks(spike: SharedSpike) -> str:
    """What stretches tell that peak at different steps: the rows of two steps differ, whatever made them spike."""
    if spike.rows_known:
        return "Their leading rows are of different steps: --step N shows those of one step in each run"
    return "The rows are known of one of them at most; in the same data order that may be the data's doing"
