"""Ctrl-C that cannot get lost between two libraries.

A `KeyboardInterrupt` raised in the middle of an import may be swallowed or come out as another error. The handler here
also remembers that it happened; whoever holds the `Interrupt` asks it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While entered, notes SIGINT and raises `KeyboardInterrupt`; the previous handler returns on exit.

    Attributes:
        happened: Whether SIGINT came.
    """

    def __init__(self) -> None:
        """Prepares; the handler is set on entry."""
        self.happened = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        """Sets the handler; in a thread other than the main one, where no handler can be set, does nothing."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Puts the previous handler back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Raises `KeyboardInterrupt` if SIGINT came and the exception got lost."""
        if self.happened:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if not self.happened:
            self.happened = True
            raise KeyboardInterrupt
        # A second Ctrl-C during the cleaning up would leave half of it behind: the first one is being obeyed.
