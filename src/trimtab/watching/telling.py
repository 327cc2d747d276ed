"""How the user's callback hears of findings: in the training thread, between two steps.

Enters: findings, from whichever thread judges. Leaves: calls of `on_finding`. Invariant: no lock is held while the
user's code runs, so it may do with the run whatever a loop may do between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trimtab.errors import GuardLockupError
from trimtab.notices import warn
from trimtab.recorder import reason_of
from trimtab.watched import WatchFinding

OnFinding = Callable[[WatchFinding], object]
"""What a user has called for each finding."""


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
