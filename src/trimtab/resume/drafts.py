"""What a saver leaves in a folder that is no checkpoint: its draft, and the old payload of a step that it went over.

Enters: a folder of checkpoints. Leaves: locks, and a folder without what dead savers left. Invariants: a draft is
locked while one of its savers lives, and only an unlocked one is removed; where locks do not work none is. Nothing is
removed but drafts of ours, payload that no manifest names any more, and what `remove_checkpoint` is told to.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.disk_changes import DISK, Disk, remove_tree
from trimtab.resume.manifest import Manifest, read_manifest
from trimtab.resume.names import DRAFT_NAME, STEP_NAME

if sys.platform != "win32":  # there, one saver a folder is the user's promise
    import fcntl

REPLACES: Final = "replaces"
"""Fact of a manifest that took another one's place: the files of that one, which are no longer part of it."""

_AGAIN: Final = "again-"

_INSIDE: Final = re.compile(r"again-[0-9a-f]{8}")


def draft_name(name: str) -> str:
    """A name for the draft of a checkpoint, never the same twice."""
    return f"{name}.tmp-{secrets.token_hex(4)}"


def name_inside(draft: str) -> str:
    """What a draft is called in a checkpoint whose place it takes."""
    return _AGAIN + draft.rpartition("-")[2]


def is_inside(name: str) -> bool:
    """Whether a folder in a checkpoint has such a name."""
    return _INSIDE.fullmatch(name) is not None


def hold(path: Path) -> int | None:
    """Marks a draft as one whose saver lives, until `let_go`; several savers may hold one.

    Returns:
        The lock; None where locks do not work.

    Raises:
        BlockingIOError: It is being removed.
        FileNotFoundError: It was removed.
    """
    return _lock(path, shared=True)


def let_go(lock: int | None) -> None:
    """Ends a lock."""
    if lock is None:
        return
    if sys.platform != "win32":
        # A worker that was forked meanwhile has the descriptor too: closing it here would not end the lock.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keeps other processes from taking the place of a checkpoint in the same folder, where locks work.

    Raises:
        OSError: The folder cannot be opened.
    """
    lock = _lock(folder.resolve(), shared=False, wait=True)
    try:
        yield
    finally:
        let_go(lock)


def clear_dead_drafts(folder: Path, *, disk: Disk = DISK) -> None:
    """Removes drafts whose savers are dead, and what is left of payload that was replaced.

    What cannot be removed stays for the next time.

    Args:
        folder: Where the checkpoints are.
        disk: What changes the disk.

    Raises:
        OSError: The folder cannot be listed.
    """
    for path in _folders(folder):
        with suppress(OSError, CheckpointError):
            if DRAFT_NAME.fullmatch(path.name):
                _remove_if_dead(path, disk=disk)
            elif STEP_NAME.fullmatch(path.name) and any(is_inside(inside.name) for inside in _folders(path)):
                with one_at_a_time(folder):
                    remove_replaced(path, disk=disk)


def remove_replaced(checkpoint: Path, *, disk: Disk = DISK) -> None:
    """Removes the payload of a checkpoint whose place was taken, and of savers that died before they could take it.

    Args:
        checkpoint: Its folder, whose manifest says what is part of it.
        disk: What changes the disk.

    Raises:
        CheckpointError: The manifest cannot be read.
        OSError: Something could not be removed.
    """
    manifest = read_manifest(checkpoint)
    _remove_files(checkpoint, replaced_by(manifest), disk=disk)
    for path in _folders(checkpoint):
        if is_inside(path.name) and not has_files_in(manifest, path.name):
            _remove_if_dead(path, disk=disk)


def remove_checkpoint(path: Path, *, disk: Disk = DISK) -> None:
    """Removes a checkpoint; killed on the way, it leaves a dead draft and never half a checkpoint.

    Args:
        path: Its folder.
        disk: What changes the disk.

    Raises:
        OSError: Something could not be removed; the name is gone, or the checkpoint is whole.
    """
    draft = path.with_name(draft_name(path.name))
    with suppress(FileNotFoundError):  # another process removed it
        disk.rename(path, draft)
    remove_tree(draft, disk=disk)


def replaced_by(manifest: Manifest) -> tuple[str, ...]:
    """The files that were a checkpoint's before this manifest took its place, and are not part of it."""
    said = manifest.facts.get(REPLACES)
    part = {entry.path for entry in manifest.files}
    return tuple(path for path in said if _is_path(path) and path not in part) if isinstance(said, list) else ()


def has_files_in(manifest: Manifest, folder: str) -> bool:
    """Whether a file of the checkpoint is in this folder of it."""
    return any(entry.path.startswith(f"{folder}/") for entry in manifest.files)


def _is_path(said: object) -> bool:
    """Whether a fact is a path of ours; whose it is decides where it leads."""
    return isinstance(said, str) and said.isprintable() and {"", ".", ".."}.isdisjoint(said.split("/"))


def _remove_files(checkpoint: Path, paths: Sequence[str], *, disk: Disk) -> None:
    """Removes files of a checkpoint and the folders that are empty then; what a link leads out to stays."""
    root = checkpoint.resolve()
    for path in map(checkpoint.joinpath, paths):
        if path.parent.resolve().is_relative_to(root) and (path.is_file() or path.is_symlink()):
            disk.remove(path)
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents if folder.name}
    for path in map(checkpoint.joinpath, sorted(folders, reverse=True)):  # what is in another one comes first
        if path.resolve().is_relative_to(root) and path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            disk.remove_folder(path)


def _remove_if_dead(path: Path, *, disk: Disk) -> None:
    lock = _lock(path, shared=False)
    if lock is None:
        return
    try:
        remove_tree(path, disk=disk)
    finally:
        let_go(lock)


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def _lock(path: Path, *, shared: bool, wait: bool = False) -> int | None:
    """Locks a folder itself: a lock file in it would be part of the checkpoint.

    Raises:
        BlockingIOError: Another process has it, and this one does not wait.
        OSError: It is no folder that can be opened.
    """
    if sys.platform == "win32":
        return None
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:  # a network file system without locks
        os.close(fd)
        return None
    return fd
