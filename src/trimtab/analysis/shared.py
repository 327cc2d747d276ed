"""Several runs side by side: what spikes in more than one of them, and at the same rows or not.

Enters: the `Findings` of each run. Leaves: `SharedSpike` values, the most widespread first. Invariant: the same rows
in several runs are the data's doing whatever the step; the same step at other rows is not. Two logs of one run count as
one: copies, or the journals of two ranks, agree because they are the same.

Findings that peak at one step share it. Stretches of one kind that overlap share the steps that all of them hold,
wherever each of them peaks: a run that is worse at step 30 than at 31 and one that is worse at 31 agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trimtab.findings import Findings, SharedSpike, Spike


class _Finding(NamedTuple):
    """A finding of the loss, and the run it is of."""

    run: str
    spike: Spike


def find_shared(runs: Sequence[Findings], *, names: Sequence[str]) -> tuple[SharedSpike, ...]:
    """Steps, and rows at different steps, whose loss is out of line in two runs or more.

    Args:
        runs: Findings of each log; gradient-norm notices are left aside.
        names: What the run of each is called; logs of one name are one run.

    Returns:
        Shared spikes: by the number of runs, most first, then by step; rows at different steps last.
    """
    found = [
        _Finding(name, spike)
        for name, findings in zip(names, runs, strict=True)
        for spike in findings.spikes
        if spike.severity != "notice"
    ]
    by_peak: dict[int, list[_Finding]] = defaultdict(list)
    by_row: dict[int, list[_Finding]] = defaultdict(list)
    for finding in found:
        by_peak[finding.spike.step].append(finding)
        if finding.spike.row is not None:
            by_row[finding.spike.row].append(finding)

    groups: list[tuple[int, int | None, list[_Finding]]]
    groups = [(step, None, group) for step, group in by_peak.items() if len(_runs(group)) > 1]
    groups += [
        (max(one.spike.first for one in group), min(one.spike.last for one in group), group)
        for group in _overlapping(found)
        # Those that peak at one step, all of them, are told already.
        if not any(set(_runs(group)) <= set(_runs(by_peak[one.spike.step])) for one in group)
    ]
    at_steps = [_shared(group, step=step, last=last) for step, last, group in groups]
    at_steps.sort(key=lambda shared: (-len(shared.runs), shared.step))
    told: dict[int, list[set[str]]] = defaultdict(list)
    for _, _, group in groups:
        for row in {one.spike.row for one in group if one.spike.row is not None}:
            told[row].append({one.run for one in group if one.spike.row == row})
    elsewhere = [
        SharedSpike(step=None, rows=(row,), runs=_runs(group), rows_known=True)
        for row, group in by_row.items()
        if len(_runs(group)) > 1 and not any(set(_runs(group)) <= runs_told for runs_told in told[row])
    ]
    elsewhere.sort(key=lambda shared: (-len(shared.runs), shared.rows))
    return (*at_steps, *elsewhere)


def _runs(group: Sequence[_Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.run for finding in group))


def _shared(group: Sequence[_Finding], *, step: int, last: int | None) -> SharedSpike:
    # Of several findings of a run the worst speaks for it, and comes first; one of its logs may hold no rows.
    leaders: dict[str, int | None] = {}
    for run, spike in group:
        if leaders.get(run) is None:
            leaders[run] = spike.row
    known = [row for row in leaders.values() if row is not None]
    return SharedSpike(
        step=step,
        rows=tuple(sorted(row for row in set(known) if known.count(row) > 1)),
        runs=tuple(leaders),
        rows_known=len(known) > 1,
        last=last,
    )


def _overlapping(found: Sequence[_Finding]) -> Iterator[list[_Finding]]:
    """Findings of one kind in two runs or more that all hold one step, and as many of them as do."""
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, (_, spike) in enumerate(found):
        by_kind[spike.kind, spike.signal].append(place)
    for places in by_kind.values():
        places.sort(key=lambda place: found[place].spike.first)
        for group in _cliques(found, places):
            if len(_runs(group)) > 1:
                yield group


def _cliques(found: Sequence[_Finding], places: Sequence[int]) -> Iterator[list[_Finding]]:
    """Each largest set of stretches with a step in common, from stretches by their first step."""
    held: list[int] = []
    for place in places:
        staying = [other for other in held if found[other].spike.last >= found[place].spike.first]
        if len(staying) < len(held):
            yield [found[other] for other in sorted(held)]
        held = [*staying, place]
    yield [found[other] for other in sorted(held)]
