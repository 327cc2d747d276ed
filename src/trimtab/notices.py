"""The one way in which the library speaks while a run goes on: one line on a named logger, once per cause.

Nothing here prints. The loggers are `trimtab.<name>`; where the program has set up no logging at all, Python's handler
of last resort would swallow information lines, so the first line gives the `trimtab` logger a handler on standard
error. A program that configures logging itself, before or after, keeps full control by the logger's name.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings

from trimtab.errors import TrimtabWarning

_said: set[tuple[str, str]] = set()
_lock = threading.Lock()


def say(name: str, message: str, *, level: int = logging.INFO) -> None:
    """Logs one line on `trimtab.<name>`."""
    _make_visible()
    # A path in no encoding would otherwise make every handler that writes UTF-8 print a traceback in the line's place.
    line = message.encode("utf-8", "backslashreplace").decode("utf-8")
    logging.getLogger(f"trimtab.{name}").log(level, "%s", line)


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


def warn_setting(message: str) -> None:
    """Warns, as `TrimtabWarning`, of a setting without effect, at the line outside Trimtab that gave it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "trimtab":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, TrimtabWarning, stacklevel=level)


def forget_said() -> None:
    """Forgets what was said, so that `warn_once` speaks again: a test begins as a process does."""
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
