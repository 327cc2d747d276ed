"""The one way in which the library speaks while a run goes on: one line on a named logger, once per cause.

Nothing here prints. The loggers are `trimtab.<name>`; where the program has set up no logging at all, Python's handler
of last resort would swallow information lines, so the first line gives the `trimtab` logger a handler on standard
error. A program that configures logging itself, before or after, keeps full control by the logger's name.
"""

from __future__ import annotations

import logging
import threading

_said: set[tuple[str, str]] = set()
_lock = threading.Lock()


def say(name: str, message: str, *, level: int = logging.INFO) -> None:
    """Logs one line on `trimtab.<name>`."""
    _make_visible()
    logging.getLogger(f"trimtab.{name}").log(level, "%s", message)


def warn(name: str, message: str) -> None:
    """Logs one warning on `trimtab.<name>`."""
    say(name, message, level=logging.WARNING)


def warn_once(name: str, message: str, *, cause: str) -> None:
    """Logs one warning on `trimtab.<name>`, and nothing more for the same name and cause in this process."""
    with _lock:
        if (name, cause) in _said:
            return
        _said.add((name, cause))
    warn(name, message)


def forget_said() -> None:
    """Forgets what was said, so that `warn_once` speaks again; for a new run in the same process, and for tests."""
    with _lock:
        _said.clear()


def _make_visible() -> None:
    logger = logging.getLogger("trimtab")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
