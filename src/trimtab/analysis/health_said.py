"""What a watch said while it trained, beside what its log shows.

Enters: events "finding" with the rank that recorded them, and findings out of the log. Leaves: findings. Invariant: a
finding is told once; where two ranks said the same of themselves, once for each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trimtab.analysis.health_order import Placed
from trimtab.watched import KINDS, WatchFinding
from trimtab.watched_json import finding_from_facts


def said_finding(placed: Placed) -> WatchFinding | None:
    """The finding that an event holds, its rank named as it was while it trained; None where it holds none."""
    finding = finding_from_facts(placed.event.facts, step=placed.event.step)
    if finding is None or not placed.rank:
        return finding
    return dataclasses.replace(
        finding, text=f"on rank {placed.rank}: {finding.text}", figures={**finding.figures, "rank": placed.rank}
    )


def with_said(
    judged: Sequence[WatchFinding], said: Sequence[WatchFinding], *, trusted_from: int | None
) -> list[WatchFinding]:
    """What the log shows, and what a watch said that the log alone does not show.

    Args:
        judged: Findings out of the log.
        said: Findings as they were said.
        trusted_from: The step from which the watch's word on routers counts as it stands; None: nowhere.
    """
    found = [finding for finding in judged if not (KINDS[finding.kind].told_by_spikes or KINDS[finding.kind].only_live)]
    known = {(finding.kind, finding.step) for finding in found}
    added: dict[tuple[str, int, str], WatchFinding] = {}
    for finding in said:
        kind = KINDS[finding.kind]
        if kind.told_by_spikes or (not kind.only_live and (finding.kind, finding.step) in known):
            continue
        is_trusted = kind.of == "router" and trusted_from is not None and finding.step >= trusted_from
        if not (kind.only_live or is_trusted):
            text = f"{finding.text} (said while it trained; the log alone does not show it)"
            finding = dataclasses.replace(finding, text=text)
        added.setdefault((finding.kind, finding.step, finding.text), finding)
    return [*found, *added.values()]
