"""`Disk`: each thing that changes the disk while a checkpoint is saved or removed, one small method each.

Enters: paths, open files, bytes. Leaves: a changed disk, or the `OSError` that says why not. Invariant: nothing in
`trimtab.resume` changes the disk in another way, so that one that fails, or a kill, can be put at every single place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from trimtab.disk import sync, sync_path


class Disk:
    """The real one."""

    def open_new(self, path: Path) -> int:
        """Makes a file that is not there yet, and opens it for writing.

        Returns:
            Its descriptor, the caller's to close.
        """
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview) -> int:
        """Writes at the end of what was written, and returns how many bytes it took: perhaps not all."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Puts what was written on the disk itself."""
        sync(fd)

    def make_folder(self, path: Path) -> None:
        """Makes a folder that is not there yet."""
        path.mkdir()

    def rename(self, path: Path, new: Path) -> None:
        """Gives a folder a name that nothing has."""
        path.rename(new)

    def replace(self, path: Path, new: Path) -> None:
        """Gives a file the name of another one, which is gone from that moment on."""
        path.replace(new)

    def remove(self, path: Path) -> None:
        """Removes a file or a link."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Removes an empty folder."""
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Puts the names in a folder on the disk itself."""
        sync_path(path)


DISK: Final = Disk()


def make_folders(path: Path, *, disk: Disk) -> None:
    """Makes a folder and those above it that are missing; another process may do the same.

    Raises:
        OSError: It could not; or there is a file of that name, or a link that leads nowhere, and `strerror` says what
            to do.
    """
    if path.is_dir():
        return
    make_folders(path.parent, disk=disk)
    try:
        disk.make_folder(path)
    except FileExistsError as error:
        if not path.is_dir():
            there = "a link that leads nowhere" if path.is_symlink() else "a file"
            why = f"{there} stands where a folder is needed. Remove it, or name another folder"
            raise FileExistsError(error.errno, why, os.fspath(path)) from error
    disk.sync_folder(path.parent)


def sync_folders(path: Path, *, disk: Disk) -> None:
    """Syncs a folder and all below it.

    Raises:
        OSError: The disk failed.
    """
    for folder, _, _ in os.walk(path):
        disk.sync_folder(Path(folder))


def remove_tree(path: Path, *, disk: Disk) -> None:
    """Removes a folder with all that is in it, without following a link; what another process removes is no error.

    Raises:
        OSError: Something could not be removed.
    """
    with suppress(FileNotFoundError):
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path), disk=disk)
                continue
            with suppress(FileNotFoundError):
                disk.remove(Path(entry.path))
        disk.remove_folder(path)
