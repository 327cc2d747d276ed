"""`OUT/history.jsonl`: one row a line, written on and never over.

In go rows, out come lines of strict JSON in ASCII (numbers that are not finite are text). Invariants: what stands in
the file stays as it is, byte for byte; a last line that a killed process tore is closed by a line end; one process
writes at a time; a disk that fails costs rows, which is said, and neither a step nor a save.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.console import Tell, reason

if sys.platform != "win32":
    import fcntl

NAME: Final = "history.jsonl"


class History:
    """Writes rows at the end of one file.

    Args:
        path: The file; made by the first row.
        tell: What to do with a line for the person who waits.
    """

    def __init__(self, path: Path, *, tell: Tell) -> None:
        self.path = path
        self._tell = tell
        self._fd: int | None = None
        self._is_torn = False
        self._has_failed = False

    def open(self) -> None:
        """Opens the file to write on, which keeps other processes from it until `close`.

        Raises:
            ConfigError: Another process trains into this folder.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            self._say_failure(error)
            return
        try:
            _lock(fd, self.path)
            self._is_torn = _ends_torn(fd)
        except ConfigError:
            os.close(fd)
            raise
        except OSError as error:
            self._say_failure(error)
        self._fd = fd

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes rows; a failure is said once, and the next call tries again. Never raises."""
        if self._fd is None or not rows:
            return
        try:
            lines = "".join(f"{json.dumps(_spelled(row), allow_nan=False)}\n" for row in rows)
            # A line that was torn is closed first: what stands there stays, and the next row has a line of its own.
            data = (b"\n" if self._is_torn else b"") + lines.encode("ascii")
            while data:
                written = os.write(self._fd, data)
                self._is_torn = not data[:written].endswith(b"\n")
                data = data[written:]
        except Exception as error:  # noqa: BLE001 - telemetry never costs a save
            self._say_failure(error)

    def close(self) -> None:
        """Lets the file go; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _say_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._tell(
                f"history: {self.path} cannot be written ({reason(error)}): rows are missing from it. "
                "Training and saves go on; this is not said again"
            )


def _spelled(value: Any) -> Any:
    """A row as strict JSON has it: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(name): _spelled(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lock(fd: int, path: Path) -> None:
    """Keeps other processes out; what is no file, or on a file system without locks, is written to all the same."""
    if sys.platform == "win32" or not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"{path} is being written by another process, which trains into this folder: wait for it, end "
            "it, or give another --out."
        ) from error
    except OSError:
        return


def _ends_torn(fd: int) -> bool:
    """Whether the last line has no end."""
    size = os.fstat(fd).st_size
    if not size:
        return False
    os.lseek(fd, size - 1, os.SEEK_SET)
    return os.read(fd, 1) != b"\n"
