"""What a run found out about its own resumes, as notices of `rewind`.

Enters: the events of a log, by time. Leaves: lines of text. Invariant: a log is believed no further than its types: an
event of another shape is left aside. A resume that a later one went back over tells nothing of the steps that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trimtab.text import plain
from trimtab.values import Event

MAX_NAMED: Final = 5
"""Findings that are told; a run may be resumed wrongly a thousand times."""


def on_resume_checks(events: Sequence[Event]) -> list[str]:
    """Where the first steps after a resume did not continue those before it, the newest resume first."""
    lines: list[str] = []
    earliest: int | None = None
    for event in reversed(events):
        if event.kind == "resume":
            earliest = event.step if earliest is None else min(earliest, event.step)
        elif event.kind == "resume_check" and (earliest is None or event.step < earliest):
            lines += _lines(event)
    more = len(lines) - MAX_NAMED
    return [*lines[:MAX_NAMED], *([f"{more} findings more of earlier resumes"] if more > 0 else [])]


def _lines(event: Event) -> list[str]:
    findings = event.facts.get("findings")
    told = [finding for finding in findings if isinstance(finding, Mapping)] if isinstance(findings, list) else []
    rank = f" on rank {event.ranks[0]}" if len(event.ranks) == 1 and event.ranks[0] > 0 else ""
    return [
        f"the run resumed at step {event.step}{rank}, {severity}: {plain(text)}"
        for finding in told
        if isinstance(text := finding.get("text"), str)
        and (severity := finding.get("severity")) in ("critical", "warning", "notice")
    ]
