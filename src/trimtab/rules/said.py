"""`Said`: which findings stand, as they were seen last, so that nothing is said twice and nothing old is told as new.

Enters: findings with what they are about, and that something is over. Leaves: those that are news, and those that
stand. Invariants: what a finding is about (a cause) stands in one finding at most; it is said again only after it was
over, or when it has become worse; what stands has the figures of the last time that it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.watched import SEVERITIES, WatchFinding
from trimtab.watched_json import finding_from_facts

Cause = tuple[str, ...]
"""What a finding is about: names as its signal chooses them."""

MAX_CAUSES: Final = 65_536
"""Causes that are held; the names of a log may be anybody's. Beyond it the oldest are taken to be over."""


class Standing(NamedTuple):
    """A finding that was said and is not over.

    Attributes:
        finding: As it was seen last, at its step.
        since: The step at which it was said first.
    """

    finding: WatchFinding
    since: int

    @property
    def because(self) -> str:
        """It as a reason, which stays true whenever it is read; up to its first colon in short."""
        seen = self.finding.step
        when = f"at step {seen}" if seen == self.since else f"since step {self.since}, last seen at step {seen}"
        return f"{self.finding.topic} {when}: {self.finding.text}"


class _Word(NamedTuple):
    """How bad a cause was when it was said, and the step at which it was said first."""

    rank: int
    since: int


@dataclass(slots=True)
class _Entry:
    finding: WatchFinding
    words: dict[Cause, _Word]
    num_unseen: int = 0


class Said:
    """The findings of a signal that were said and are not over."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._where: dict[Cause, _Entry] = {}

    # Of a signal that has one finding for each cause.

    def say(self, finding: WatchFinding, *, cause: str = "") -> tuple[WatchFinding, ...]:
        """The finding where it is news, else nothing; what stands is it from now on.

        Args:
            finding: What was found.
            cause: What it is about, where a signal has several things that go wrong by themselves.
        """
        rank = len(SEVERITIES) - SEVERITIES.index(finding.severity)
        if not self.is_news((cause,), rank=rank):
            since = self._where[cause,].finding.since_step
            if since is not None and (finding.since_step is None or since < finding.since_step):
                finding = replace(finding, since_step=since)  # it has stood since then
            self.see_again(finding, about=(cause,))
            return ()
        self.open(finding, ranks={(cause,): rank})
        return (finding,)

    def end(self, cause: str = "") -> None:
        """It is over: found again, it is said again."""
        self.close((cause,))

    def stands(self, cause: str = "") -> bool:
        """Whether it was said and is not over."""
        return (cause,) in self._where

    # Of one whose finding is about several causes at once.

    def is_news(self, cause: Cause, *, rank: int) -> bool:
        """Whether nobody was told, or of something less bad."""
        entry = self._where.get(cause)
        return entry is None or rank > entry.words[cause].rank

    def open(self, finding: WatchFinding, *, ranks: Mapping[Cause, int]) -> None:
        """Lets a finding stand until all that it is about is over, or said anew.

        Args:
            finding: What is said.
            ranks: What it is about, each with how bad it is.
        """
        words = {}
        for cause, rank in ranks.items():
            before = self._where.get(cause)
            words[cause] = _Word(rank, finding.step if before is None else before.words[cause].since)
            self.close(cause)
        entry = _Entry(finding, words)
        self._where |= dict.fromkeys(words, entry)
        self._entries.append(entry)
        while len(self._where) > MAX_CAUSES:
            self.close(next(iter(self._where)))

    def see_again(self, finding: WatchFinding, *, about: Cause) -> None:
        """Replaces the finding that stands for a cause by what it is now."""
        entry = self._where[about]
        entry.finding, entry.num_unseen = finding, 0

    def together(self, causes: Iterable[Cause]) -> list[list[Cause]]:
        """Those of some causes that stand, by the finding in which they do."""
        groups: dict[int, list[Cause]] = {}
        for cause in causes:
            if cause in self._where:
                groups.setdefault(id(self._where[cause]), []).append(cause)
        return list(groups.values())

    def close(self, cause: Cause) -> None:
        """It is over, if it stood."""
        entry = self._where.pop(cause, None)
        if entry is None:
            return
        del entry.words[cause]
        if not entry.words:
            self._entries = [one for one in self._entries if one is not entry]

    def end_unseen(self, step: int, *, most: int) -> None:
        """Takes for over what has not been seen in so many looks, of which this was one.

        Args:
            step: Of the look.
            most: Looks in a row.
        """
        for entry in tuple(self._entries):
            entry.num_unseen += entry.finding.step != step
            if entry.num_unseen >= most:
                for cause in tuple(entry.words):
                    self.close(cause)

    def now(self) -> tuple[Standing, ...]:
        """All that stand, in the order in which they were said."""
        return tuple(
            Standing(entry.finding, min(word.since for word in entry.words.values())) for entry in self._entries
        )

    # State.

    def state_dict(self) -> list[dict[str, Any]]:
        """What stands, and what each is about, as plain values."""
        return [
            {
                "finding": entry.finding.to_dict(),
                "about": [[list(cause), word.rank, word.since] for cause, word in entry.words.items()],
                "num_unseen": entry.num_unseen,
            }
            for entry in self._entries
        ]

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        if not isinstance(state, list):
            raise damaged(f"what stands is {spelled(state)}, not a list")
        entries = [_read_entry(entry) for entry in state]
        where = {cause: entry for entry in entries for cause in entry.words}
        if len(where) < sum(len(entry.words) for entry in entries):
            raise damaged("what stands names a cause twice")
        self._entries, self._where = entries, where


def _read_entry(state: object) -> _Entry:
    facts, about, num_unseen = read_entries(state, ("finding", "about", "num_unseen"), where="what stands")
    finding = finding_from_facts(facts, step=0)
    if finding is None or not isinstance(about, list) or not about:
        raise damaged(f"what stands holds {spelled(state)}, not a finding")
    words: dict[Cause, _Word] = {}
    for word in about:
        if not isinstance(word, list | tuple) or len(word) != 3 or not _is_cause(word[0]):
            raise damaged(f"a finding is about {spelled(word)}, not a cause, a rank and a step")
        words[tuple(word[0])] = _Word(
            read_count(word[1], name="a finding's rank"), read_count(word[2], name="a finding's first step")
        )
    return _Entry(finding, words, read_count(num_unseen, name="a finding's num_unseen"))


def _is_cause(found: object) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
