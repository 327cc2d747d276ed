"""OUT: one process at a time trains into it, and what is saved there can be saved.

In go a folder and the place of a segment in it; out comes nothing, or an error before anything is built. Invariant:
nothing is written into a folder that another process trains into.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.console import Tell, reason

if sys.platform != "win32":
    import fcntl

_TRIED_BYTES: Final = 4096
"""Written and removed again: a full disk makes folders, and takes no byte."""


class Hold:
    """Keeps other processes from a folder, from the moment that it is there to the end of the context.

    The folder itself is locked, so that the lock depends on no file in it.

    Args:
        out: The folder.
        tell: What to do with a line for the person who waits.
    """

    def __init__(self, out: Path, *, tell: Tell) -> None:
        self._out = out
        self._tell = tell
        self._fd: int | None = None

    def __enter__(self) -> Self:
        """Locks the folder where it is there already: what is in it then stays as it is looked at.

        Raises:
            ConfigError: Another process trains into it.
        """
        if self._out.is_dir():
            with _refused(self._out):
                self._lock()
        return self

    def make_ready(self, segment: Path) -> None:
        """Makes the folder, and tries whether a segment of it can be saved to; what was tried with is gone again.

        Args:
            segment: The segment's folder.

        Raises:
            ConfigError: It cannot, or another process trains there.
        """
        with _refused(self._out):
            self._out.mkdir(parents=True, exist_ok=True)
            self._lock()
        with _refused(segment):
            is_new = not segment.is_dir()
            segment.mkdir(exist_ok=True)
            try:
                with tempfile.TemporaryFile(dir=segment, prefix=".tried-") as file:
                    file.write(bytes(_TRIED_BYTES))
                    file.flush()
            finally:
                if is_new:
                    segment.rmdir()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets the folder go."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _let_go(fd)

    def _lock(self) -> None:
        if self._fd is not None:
            return
        if sys.platform == "win32":
            self._say_unlocked("Windows locks no folder")
            return
        self._fd = os.open(self._out, os.O_RDONLY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{self._out}: another process trains into this folder: wait for it, end it, or give another --out."
            ) from error
        except OSError as error:
            self._say_unlocked(reason(error))

    def _say_unlocked(self, why: str) -> None:
        self._tell(f"{self._out} cannot be locked ({why}): see to it yourself that one process at a time trains there")


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Makes an error of the disk one of usage: there is nothing to train for where nothing can be saved."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--out: nothing can be saved in {path} ({reason(error)}): give another folder.") from error


def _let_go(fd: int) -> None:
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            fcntl.flock(fd, fcntl.LOCK_UN)  # by name: a forked process may hold the descriptor still
    with contextlib.suppress(OSError):
        os.close(fd)
