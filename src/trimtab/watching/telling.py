"""How findings are told: as lines, by the thread that judges, and to the user's callback, by the one that trains.

Enters: findings, from whichever thread judges. Leaves: lines, and calls of `on_finding` between two steps. Invariants:
each finding is handed to the callback and stands in a line, by its text or by its name; no lock is held while the
user's code runs, so it may do with the run whatever a loop may do between two steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from trimtab.errors import GuardLockupError
from trimtab.notices import warn
from trimtab.recorder import reason_of
from trimtab.text import listed
from trimtab.watched import KINDS, SEVERITIES, Severity, WatchFinding

OnFinding = Callable[[WatchFinding], object]
"""What a user has called for each finding."""

LEVELS: Final[dict[Severity, int]] = {"critical": logging.ERROR, "warning": logging.WARNING, "notice": logging.INFO}
"""The level of a logger at which a finding is said."""


def lines_of(findings: Iterable[WatchFinding], *, whose: str = "") -> list[tuple[int, str]]:
    """The lines that say what was found at one moment, each with its level.

    What one report finds of the same routers has one cause more often than not (a router whose weights are gone is
    collapsed, and has dead experts): the worst is said, and the others are named behind it.

    Args:
        findings: What was found.
        whose: What stands behind the step, as of another rank.
    """
    together: dict[object, list[WatchFinding]] = {}
    for finding in findings:
        is_of_router = KINDS[finding.kind].of == "router"
        key = (finding.step, frozenset(finding.layers)) if is_of_router else id(finding)
        together.setdefault(key, []).append(finding)
    return [_line(sorted(same, key=_by_severity), whose=whose) for same in together.values()]


def _line(findings: Sequence[WatchFinding], *, whose: str) -> tuple[int, str]:
    first, *others = findings
    at = f"step {first.step}" if first.step else "at launch"
    also = f" Also {listed(finding.kind for finding in others)}." if others else ""
    line = f"Trimtab, {at}{whose}: {first.severity}: {first.kind}: {first.text}.{also}"
    return LEVELS[first.severity], line


def _by_severity(finding: WatchFinding) -> int:
    return SEVERITIES.index(finding.severity)


class Callback:
    """The user's callback, or none.

    Args:
        on_finding: The callback; None: there is none.
        found: Findings that it has not seen, filled by another thread.
    """

    def __init__(self, on_finding: OnFinding | None, *, found: deque[WatchFinding]) -> None:
        self._on_finding = on_finding
        self._found = found
        self._is_calling = False
        self._said_failure = False

    def call(self) -> None:
        """Calls it for each finding since the last call.

        An `Exception` in it is said once. What ends a program passes, and so does a guard's lock-up, which is a
        decision. A callback that comes here again, by ending the run, leaves the rest to the call that it is in.
        """
        if not self._found or self._is_calling:
            return
        self._is_calling = True
        try:
            while self._found:
                finding = self._found.popleft()
                if self._on_finding is None:
                    continue
                try:
                    self._on_finding(finding)
                except GuardLockupError:
                    raise
                except Exception as error:  # noqa: BLE001 - a watch raises nothing into training
                    self._say_failure(error)
        finally:
            self._is_calling = False

    def _say_failure(self, error: Exception) -> None:
        if self._said_failure:
            return
        self._said_failure = True
        name, reason = type(error).__name__, reason_of(error)
        told = reason if reason.startswith(name) else f"{name}: {reason}"
        warn(
            "watch",
            f"on_finding failed: {told}. Training goes on, and further findings are handed to it; what it raises then "
            "is not said again.",
        )
