"""Appends frames to one rank's journal.

Enters: blocks. Leaves: one `os.write` a frame at the end of the file. Invariant: a file is only ever appended to; once
`append` has returned, the frame is the operating system's, and a killed process loses nothing of it.

One writer at a time, by a lock that ends with the process. After a torn tail nothing is repaired: the next frame names
its own offset, and a reader finds it.

    rank-00000.journal --rename--> rank-00000.000001.journal       `rotate`: the lock stays on the closed file until it
    rank-00000.journal.new --rename--> rank-00000.journal          is sealed, and is on the new one before it has a name
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

from trimtab.disk import NEW_SUFFIX, sync
from trimtab.errors import UsageError
from trimtab.log.frames import MAX_ATTEMPT, MAX_RANK, Block, pack_frame
from trimtab.log.parts import ACTIVE, closed_journals, list_parts

if sys.platform != "win32":  # there, one writer is the user's promise
    import fcntl

_SYNC_INTERVAL_S: Final = 1.0


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
        self._closed_fd = -1
        self._fd = _open_locked(path)
        try:
            _demand_no_other_writer(path)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def size_bytes(self) -> int:
        """Size of the file that is being written."""
        return os.fstat(self._fd).st_size

    def append(self, block: Block) -> int:
        """Writes the block as one frame and returns its offset.

        Raises:
            OSError: It was not written, or not whole; the file holds a torn frame at most.
            ValueError: The block is over the format's bounds.
        """
        # Asked each time: after a write that failed midway the end is not where we left it.
        offset = self.size_bytes
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
        sync(self._fd)
        self._unsynced = False
        self._synced_at = now

    def rotate(self, closed: Path, first: Block) -> None:
        """Gives what was written so far another name, and goes on in a new file under the old one.

        The lock on the closed file is kept until `release`, so that at each moment one of the two keeps others out.

        Args:
            closed: Where the file goes; nothing may be there.
            first: What the new file begins with.

        Raises:
            OSError: It could not; what was written is under the old name, or under the new one, and the journal is
                appended to as before.
        """
        self.sync(force=True)
        draft = self._no_draft()
        before = self._fd
        self._fd = _open_locked(draft)
        try:
            self.append(first)
            self.sync(force=True)
            self.path.rename(closed)
            try:
                draft.rename(self.path)
            except OSError:
                closed.rename(self.path)
                raise
        except BaseException:
            os.close(self._fd)
            self._fd = before
            draft.unlink(missing_ok=True)
            raise
        self._closed_fd = before

    def finish(self, closed: Path) -> None:
        """Gives the file another name and ends the writing; the lock is kept until `close`.

        Raises:
            OSError: It could not, and the file is where it was.
        """
        self.sync(force=True)
        self._no_draft()
        self.path.rename(closed)
        self._closed_fd, self._fd = self._fd, -1

    def _no_draft(self) -> Path:
        """Where the next journal is made before it has its name; what a writer left that was stopped there is gone."""
        draft = self.path.with_name(self.path.name + NEW_SUFFIX)
        draft.unlink(missing_ok=True)
        return draft

    def release(self) -> None:
        """Gives back the lock on the closed file."""
        fd, self._closed_fd = self._closed_fd, -1
        _release(fd)

    def close(self) -> None:
        """Syncs and closes; the locks are given back. Closing twice does nothing."""
        try:
            if self._fd >= 0:
                self.sync(force=True)
        finally:
            fd, self._fd = self._fd, -1
            _release(fd)
            self.release()

    def abandon(self) -> None:
        """Closes this process's descriptors and leaves files and locks alone; for a forked child."""
        for fd in (self._fd, self._closed_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._closed_fd = -1


def ranks_writing(folder: Path) -> list[int]:
    """Ranks whose journal in a run folder is being written, ascending; none where the file system knows no locks.

    A writer that was killed has lost its lock, and one that only seals what it wrote writes nothing any more.

    Raises:
        OSError: The folder cannot be listed, or a journal not opened.
    """
    writing = []
    for part in list_parts(folder):
        if part.journal is not None and part.number == ACTIVE:
            with contextlib.suppress(FileNotFoundError):  # it has just been closed
                if _is_locked(part.journal):
                    writing.append(part.rank)
    return writing


def _open_locked(path: Path) -> int:
    """A descriptor of the file under this name, made if there is none, with the lock on it."""
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            _lock(fd, path)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the writer before us sealed it between our opening and our lock


def _demand_no_other_writer(path: Path) -> None:
    """A writer in the middle of a rotation has its lock on a closed journal of the same rank."""
    if any(_is_locked(closed) for closed in closed_journals(path)):
        raise _taken(path)


def _is_locked(path: Path) -> bool:
    """Whether a writer has its lock on the file; False on a file system without locks.

    Raises:
        OSError: The file cannot be opened.
    """
    if sys.platform == "win32":
        return False
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _release(fd: int) -> None:
    if fd < 0:
        return
    if sys.platform != "win32":
        # A forked worker may still hold the descriptor, and with it the lock, unless it is given back by name.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _taken(path: Path) -> UsageError:
    return UsageError(
        f"{path} is being written by another process or recorder; expected to be its only writer. "
        "End the other one, or choose another run_id"
    )


def _lock(fd: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _taken(path) from error
    except OSError:
        return  # a file system without locks (some network mounts): recorded all the same
