"""Appends frames to one rank's journal.

Enters: blocks. Leaves: one `os.write` a frame at the end of the file. Invariant: a file is only ever appended to; once
`append` has returned, the frame is the operating system's, and a killed process loses nothing of it.

One writer at a time, by a lock that ends with the process. After a torn tail nothing is repaired: the next frame names
its own offset, and a reader finds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trimtab.errors import UsageError
from trimtab.log.frames import MAX_ATTEMPT, MAX_RANK, Block, pack_frame

if sys.platform != "win32":  # there, one writer is the user's promise
    import fcntl

_SYNC_INTERVAL_S: Final = 1.0
_NO_SYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What a file system says that cannot sync; one whose disk is broken says something else."""


def journal_name(rank: int) -> str:
    """File name of a rank's journal: `rank-00000.journal`."""
    return f"rank-{rank:05d}.journal"


class JournalWriter:
    """The end of one journal, open for one writer.

    Args:
        path: The journal; made if it is not there.
        attempt: 1-based attempt that is written into every frame.
        rank: Rank that is written into every frame.
        write: `os.write`, or what stands for it in a test.
        clock: Monotonic seconds.

    Raises:
        UsageError: Another writer has the journal open, or attempt or rank are out of range.
        OSError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: int = 1,
        rank: int = 0,
        write: Callable[[int, bytes], int] = os.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (1 <= attempt <= MAX_ATTEMPT and 0 <= rank <= MAX_RANK):
            raise UsageError(f"attempt {attempt}, rank {rank} of {path}: at most {MAX_ATTEMPT} and {MAX_RANK}")
        self.path = path
        self._attempt = attempt
        self._rank = rank
        self._write = write
        self._clock = clock
        self._unsynced = False
        self._synced_at = clock()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(path, flags, 0o666)
        try:
            _lock(self._fd, path)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, block: Block) -> int:
        """Writes the block as one frame and returns its offset.

        Raises:
            OSError: It was not written, or not whole; the file holds a torn frame at most.
            ValueError: The block is over the format's bounds.
        """
        # Asked each time: after a write that failed midway the end is not where we left it.
        offset = os.fstat(self._fd).st_size
        rest = pack_frame(block, attempt=self._attempt, rank=self._rank, offset=offset)
        self._unsynced = True
        written = self._write(self._fd, rest)
        while written < len(rest):  # a full disk takes a part and refuses the rest
            if written <= 0:
                raise OSError(errno.EIO, "the file takes no more bytes and does not say why", str(self.path))
            rest = rest[written:]
            written = self._write(self._fd, rest)
        return offset

    def is_in_place(self) -> bool:
        """Whether the file is where it was opened; False if it was moved, and what is appended goes into it there.

        Costs two system calls. A file system that does not answer is no reason to stop: a write will tell.

        Raises:
            FileNotFoundError: The file was deleted, or another one stands in its place: what is appended is lost to
                whoever looks for it.
        """
        here = os.fstat(self._fd)
        if here.st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was deleted while the run wrote to it")
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        if not os.path.samestat(here, there):
            raise FileNotFoundError(f"{self.path} was replaced by another file while the run wrote to it")
        return True

    def sync(self, *, force: bool = False) -> None:
        """Puts what was written on the disk itself, at most once a second unless forced.

        A file system that cannot is left to its own time, like one without locks.

        Raises:
            OSError: The disk failed.
        """
        now = self._clock()
        if not self._unsynced or (now - self._synced_at < _SYNC_INTERVAL_S and not force):
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
        self._unsynced = False
        self._synced_at = now

    def close(self) -> None:
        """Syncs and closes; the lock is given back. Closing twice does nothing."""
        if self._fd < 0:
            return
        try:
            self.sync(force=True)
        finally:
            if sys.platform != "win32":
                # A forked worker may still hold the descriptor, and with it the lock, unless it is given back by name.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Closes this process's descriptor and leaves file and lock alone; for a forked child."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{path} is being written by another process or recorder; expected to be its only writer. "
            "End the other one, or choose another run_id"
        ) from error
    except OSError:
        return  # a file system without locks (some network mounts): recorded all the same
