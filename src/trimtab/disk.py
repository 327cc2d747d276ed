"""Puts what was written on the disk itself, where a crash of the machine leaves it.

Enters: an open file, a path, or bytes. Leaves: nothing. Invariant: a file system that cannot sync is left to its own
time, like one without locks; one whose disk failed is an error.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

NEW_SUFFIX: Final = ".new"
"""What the name of a file or folder ends with until it is whole; no reader looks at it."""

_NO_SYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What a file system says that cannot sync; one whose disk is broken says something else."""


def sync(fd: int) -> None:
    """Syncs an open file, or what stands in an open folder.

    Raises:
        OSError: The disk failed.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_path(path: Path) -> None:
    """Syncs a file, or what stands in a folder.

    Raises:
        OSError: It cannot be opened, or the disk failed.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that appears whole or not at all.

    Raises:
        OSError: It could not, or another one is being made under this name.
    """
    draft = path.with_name(path.name + NEW_SUFFIX)
    with draft.open("xb") as stream:
        stream.write(data)
        stream.flush()
        sync(stream.fileno())
    draft.replace(path)


@contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block ends without an error, and is gone otherwise.

    Raises:
        OSError: The file cannot be written; what stood there before still does.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        # A temporary file is its owner's alone; this one is as readable as any file made here.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
