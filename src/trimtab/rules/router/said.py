"""Which findings stand: each thing is said once, and again only after it was over or when it has become worse.

Signs come in, groups of them that are news go out. Invariant: a layer stands under one topic of one kind in one finding
at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.rules.router.signs import Sign
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.watched import WatchFinding
from trimtab.watched_json import finding_from_facts, finding_to_facts

_Key = tuple[str, str, str]
"""Kind, topic, layer."""

MAX_STANDING: Final = 65_536
"""Keys that are held; the names of a log may be anybody's. Beyond it the oldest are taken to be over."""


@dataclass(slots=True)
class _Standing:
    finding: WatchFinding
    ranks: dict[_Key, int]


class Said:
    """The findings that were said and are not over."""

    def __init__(self) -> None:
        self._standing: list[_Standing] = []
        self._where: dict[_Key, _Standing] = {}

    @property
    def findings(self) -> tuple[WatchFinding, ...]:
        """Those that stand, in the order in which they were said."""
        return tuple(standing.finding for standing in self._standing)

    def news(self, kind: str, signs: Iterable[Sign]) -> list[list[Sign]]:
        """Signs that are to be said, in groups of one topic and rank; closes what is over.

        Args:
            kind: What the signs are of.
            signs: Of one report.
        """
        groups: dict[tuple[str, int], list[Sign]] = {}
        for sign in signs:
            key = (kind, sign.topic, sign.layer)
            standing = self._where.get(key)
            if sign.is_over:
                self._close(key)
            elif standing is None or sign.rank > standing.ranks[key]:
                groups.setdefault((sign.topic, sign.rank), []).append(sign)
        return list(groups.values())

    def open(self, finding: WatchFinding, signs: Sequence[Sign]) -> None:
        """Lets a finding stand until all of its signs are over, or said anew."""
        standing = _Standing(finding, {})
        for sign in signs:
            key = (finding.kind, sign.topic, sign.layer)
            self._close(key)
            standing.ranks[key] = sign.rank
            self._where[key] = standing
        self._standing.append(standing)
        while len(self._where) > MAX_STANDING:
            self._close(next(iter(self._where)))

    def state_dict(self) -> dict[str, Any]:
        """The standing findings and what each stands for, as plain values."""
        return {
            "standing": [
                {
                    "finding": finding_to_facts(standing.finding),
                    "keys": [[topic, layer, rank] for (_, topic, layer), rank in standing.ranks.items()],
                }
                for standing in self._standing
            ]
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        (entries,) = read_entries(state, ("standing",), where="what was said")
        if not isinstance(entries, list):
            raise damaged(f"what was said holds {spelled(entries)}, not a list")
        standing = [_read_standing(entry) for entry in entries]
        self._standing = standing
        self._where = {key: one for one in standing for key in one.ranks}

    def _close(self, key: _Key) -> None:
        standing = self._where.pop(key, None)
        if standing is None:
            return
        del standing.ranks[key]
        if not standing.ranks:
            self._standing = [one for one in self._standing if one is not standing]


def _read_standing(entry: Any) -> _Standing:
    facts, keys = read_entries(entry, ("finding", "keys"), where="a finding")
    finding = finding_from_facts(facts, step=0)
    if finding is None or not isinstance(keys, list) or not keys:
        raise damaged(f"it holds {spelled(entry)}, not a finding")
    ranks: dict[_Key, int] = {}
    for key in keys:
        if not isinstance(key, list | tuple) or len(key) != 3 or not isinstance(key[0], str):
            raise damaged(f"a finding stands for {spelled(key)}, not a topic, a layer and a rank")
        topic, layer, rank = key
        if not isinstance(layer, str):
            raise damaged(f"a finding stands for {spelled(layer)}, not a layer")
        ranks[finding.kind, topic, layer] = read_count(rank, name="a finding's rank")
    return _Standing(finding, ranks)
