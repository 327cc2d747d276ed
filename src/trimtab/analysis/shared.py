"""Several runs side by side: what spikes in more than one of them, and at the same rows or not.

Enters: the `Findings` of each run. Leaves: `SharedSpike` values, the most widespread first. Invariant: the same rows
in several runs are the data's doing whatever the step; the same step at other rows is not. Two logs of one run, by its
id, count as one: copies, or the journals of two ranks, agree because they are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trimtab.findings import Findings, SharedSpike


def find_shared(runs: Sequence[Findings]) -> tuple[SharedSpike, ...]:
    """Steps, and rows at different steps, whose loss is out of line in two runs or more.

    Args:
        runs: Findings of each run; gradient-norm notices are left aside.

    Returns:
        Shared spikes: by the number of runs, most first, then by step; rows at different steps last.
    """
    leaders: dict[int, dict[str, int | None]] = defaultdict(dict)
    steps_of_row: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for findings in runs:
        run = _name(findings)
        for spike in findings.spikes:
            if spike.severity == "notice":
                continue
            leaders[spike.step].setdefault(run, spike.row)
            if spike.row is not None:
                steps_of_row[spike.row][run].add(spike.step)

    at_steps = [_at_step(step, by_run) for step, by_run in leaders.items() if len(by_run) > 1]
    elsewhere = [
        SharedSpike(step=None, rows=(row,), runs=tuple(by_run), rows_known=True)
        for row, by_run in steps_of_row.items()
        if len(by_run) > 1 and not set.intersection(*by_run.values())
    ]
    at_steps.sort(key=lambda shared: (-len(shared.runs), shared.step))
    elsewhere.sort(key=lambda shared: (-len(shared.runs), shared.rows))
    return (*at_steps, *elsewhere)


def num_different(runs: Sequence[Findings]) -> int:
    """How many different runs these are."""
    return len(set(map(_name, runs)))


def _name(findings: Findings) -> str:
    return findings.run_id or findings.source


def _at_step(step: int, leader_by_run: dict[str, int | None]) -> SharedSpike:
    known = [row for row in leader_by_run.values() if row is not None]
    return SharedSpike(
        step=step,
        rows=tuple(sorted(row for row in set(known) if known.count(row) > 1)),
        runs=tuple(leader_by_run),
        rows_known=len(known) > 1,
    )
