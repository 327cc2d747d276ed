"""`Standing`: what has been said and is not over, so that nothing is said twice.

Enters: findings, and that something is over. Leaves: those findings that are news. Invariant: of one cause at most one
finding stands; it is said again only after it was over, or when it has become worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged
from trimtab.watched import Severity, WatchFinding
from trimtab.watched_json import finding_from_facts, finding_to_facts

_ORDER: Final[tuple[Severity, ...]] = ("notice", "warning", "critical")


class Standing:
    """The findings of one signal that stand, by their cause."""

    def __init__(self) -> None:
        self._findings: dict[str, WatchFinding] = {}

    def say(self, finding: WatchFinding, *, cause: str = "") -> tuple[WatchFinding, ...]:
        """The finding where it is news, else nothing.

        Args:
            finding: What was found.
            cause: What it is about, where a signal has several things that go wrong by themselves.
        """
        said = self._findings.get(cause)
        if said is not None and _ORDER.index(finding.severity) <= _ORDER.index(said.severity):
            return ()
        self._findings[cause] = finding
        return (finding,)

    def end(self, cause: str = "") -> None:
        """It is over: found again, it is said again."""
        self._findings.pop(cause, None)

    def stands(self, cause: str = "") -> bool:
        """Whether it was said and is not over."""
        return cause in self._findings

    def now(self) -> tuple[WatchFinding, ...]:
        """All that stand, as they were said."""
        return tuple(self._findings.values())

    def state_dict(self) -> dict[str, Any]:
        """The findings by their cause; JSON-ready."""
        return {cause: finding_to_facts(finding) for cause, finding in self._findings.items()}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        if not isinstance(state, Mapping):
            raise damaged(f"what stands is {spelled(state)}, not a dict")
        findings = {}
        for cause, facts in state.items():
            finding = finding_from_facts(facts, step=0)
            if finding is None:
                raise damaged(f"what stands holds {spelled(facts)}, not a finding")
            findings[str(cause)] = finding
        self._findings = findings
