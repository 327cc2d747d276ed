"""Events of several ranks become those of one run: what every rank saw happen, happened once.

Enters: each rank's events, rank by rank. Leaves: one list by time. Invariant: no event is lost; two become one only if
different ranks recorded them, and what they say, of the same step, is the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trimtab.values import Event
from trimtab.watched import EVALUATION_EVENT

_OF_EACH_RANK: Final = ("dropped", "refused")
"""Kinds that count what happened to the recorder of one rank: two that are alike are two losses."""

_TIMES: Final = ("time", "seconds", "per_second")
"""Ends of the names under which an evaluation tells how long it took: each rank measures that for itself."""


def merged(events: Iterable[tuple[int, Event]]) -> list[Event]:
    """Events by time, those that several ranks recorded alike once: as often as on the rank that has it most often.

    Args:
        events: Rank and event, by ascending rank, of one rank in the order recorded.

    Returns:
        The events as the lowest of their ranks recorded them, each with its ranks.
    """
    found: list[Event] = []
    places: dict[tuple[str, int, str], list[int]] = {}
    num_seen: Counter[tuple[int, tuple[str, int, str]]] = Counter()
    for rank, event in events:
        own = replace(event, ranks=(rank,))
        if event.kind in _OF_EACH_RANK:
            found.append(own)
            continue
        key = (event.kind, event.step, _content(event))
        alike = places.setdefault(key, [])
        nth = num_seen[rank, key]
        num_seen[rank, key] += 1
        if nth < len(alike):
            first = found[alike[nth]]
            found[alike[nth]] = replace(first, ranks=(*first.ranks, rank))
        else:
            alike.append(len(found))
            found.append(own)
    return sorted(found, key=lambda event: event.time)


def _content(event: Event) -> str:
    """What must be the same for two events to be one."""
    facts = event.facts
    if event.kind == EVALUATION_EVENT:
        facts = {name: fact for name, fact in facts.items() if not name.endswith(_TIMES)}
    return json.dumps(facts, sort_keys=True)
