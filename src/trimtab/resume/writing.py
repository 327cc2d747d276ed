"""Writes a checkpoint so that a kill, a power cut or a full disk at any point leaves what was there before, loadable.

    begin                    step_200.tmp-1f0c9a3e/                      a draft, locked while its saver lives
    file                     step_200.tmp-1f0c9a3e/model.pt, ...         each synced, its checksum known
    commit                   .../trimtab_manifest.json, then the folder gets its name: step_200/

    over a step of its own   step_200/again-1f0c9a3e/model.pt, ...       the draft moves into the old checkpoint,
                             step_200/trimtab_manifest.json              one file is replaced, then the old payload goes

Enters: a folder, bytes, a `Manifest`. Leaves: a checkpoint under its name, or nothing but an error. Invariants: at no
moment does a name stand for half a checkpoint, nor is the last one that loads gone before its successor is on the disk;
another run's checkpoint is never overwritten. Every change of the disk goes through `trimtab.resume.disk_changes`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError, UsageError
from trimtab.notices import warn
from trimtab.resume.disk_changes import DISK, Disk, make_folders, remove_tree, sync_folders
from trimtab.resume.drafts import (
    REPLACES,
    clear_dead_drafts,
    draft_name,
    has_files_in,
    hold,
    is_inside,
    let_go,
    name_inside,
    one_at_a_time,
    remove_replaced,
    replaced_by,
)
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest, dump_manifest, read_manifest
from trimtab.resume.stream import Stream
from trimtab.text import plain

_ALREADY_THERE: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
"""What a rename says whose new name stands for something."""


class Draft:
    """A checkpoint that is being written, under a name that nobody takes for one.

    Attributes:
        path: Its folder, to which the paths of the entries are relative.
    """

    def __init__(self, path: Path, *, target: Path, lock: int | None, is_mine: bool, disk: Disk) -> None:
        """Use `begin` or `join`."""
        self.path = path
        self._target = target
        self._lock = lock
        self._is_mine = is_mine
        self._disk = disk
        self._entries: list[FileEntry] = []
        self._is_committed = False

    @classmethod
    def begin(cls, folder: str | os.PathLike[str], name: str, *, disk: Disk = DISK) -> Draft:
        """Makes a draft, after what dead savers left in the folder is cleared away.

        Args:
            folder: Where the checkpoints are; made where missing.
            name: What this one will be called.
            disk: What changes the disk.

        Raises:
            OSError: The disk is full, failed or may not be written.
        """
        folder = Path(os.path.abspath(folder))
        make_folders(folder, disk=disk)
        clear_dead_drafts(folder, disk=disk)
        while True:
            path = folder / draft_name(name)
            disk.make_folder(path)
            # Before it is locked, another process may take it for a dead saver's: another name then.
            with suppress(BlockingIOError, FileNotFoundError):
                lock = hold(path)
                if path.exists():
                    return cls(path, target=folder / name, lock=lock, is_mine=True, disk=disk)
                let_go(lock)

    @classmethod
    def join(cls, path: str | os.PathLike[str], *, disk: Disk = DISK) -> Draft:
        """The draft that another rank began, to write files of this rank into.

        Args:
            path: Its folder.
            disk: What changes the disk.

        Raises:
            CheckpointError: This rank does not see the folder.
        """
        path = Path(path)
        if not path.is_dir():
            raise CheckpointError(
                f"{plain(str(path))}: this rank does not see the folder that rank 0 made for the checkpoint. Save into "
                "a folder that all ranks share"
            )
        return cls(path, target=path, lock=hold(path), is_mine=False, disk=disk)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The files written through this object, in that order."""
        return tuple(self._entries)

    @contextmanager
    def file(self, relative: str) -> Iterator[Stream]:
        """A file to write, which is synced and among the entries when the block ends without an error.

        Args:
            relative: Its path in the draft, with "/" between its parts.

        Raises:
            OSError: The disk is full or failed, whatever the writer made of that.
        """
        path = self._place(relative)
        fd = self._disk.open_new(path)
        try:
            stream = Stream(fd, disk=self._disk)
            try:
                yield stream
            except Exception as error:
                # torch tells of a failed write as a RuntimeError about positions in its archive.
                if stream.failure is None or error is stream.failure:
                    raise
                raise stream.failure from error
            if stream.failure is not None:
                raise stream.failure
            self._disk.sync(fd)
        finally:
            os.close(fd)
        self._entries.append(FileEntry(path=relative, size_bytes=stream.size_bytes, crc32=stream.crc32))

    def commit(self, manifest: Manifest) -> Path:
        """Gives the draft its name.

        Args:
            manifest: Of all ranks' files, their paths relative to the draft.

        Returns:
            The checkpoint's folder. Where it is over an older one of the same run and step, the files are in a
            subfolder of it: the manifest there says where.

        Raises:
            CheckpointError: The name stands for something that is not this run's to replace, or the manifest cannot be
                written: a field is not what a reader takes.
            OSError: The disk is full or failed. What stood under the name before still loads.
        """
        if not self._is_mine:
            raise CheckpointError(f"{plain(str(self.path))}: rank 0 began this draft and commits it")
        sync_folders(self.path, disk=self._disk)
        self._clear_the_name(manifest)
        if os.path.lexists(self._target) or not self._took_name(manifest):
            self._take_place(manifest)
        self.leave()
        return self._target

    def abandon(self) -> None:
        """Removes what was written, if it is not committed; never raises.

        A draft that was joined is only let go of: the rank that began it removes it.
        """
        if self._is_mine and not self._is_committed:
            with suppress(OSError, CheckpointError):
                # A network may lose the answer to a rename that was done: what a manifest names is no draft any more.
                if self.path.parent != self._target or not has_files_in(read_manifest(self._target), self.path.name):
                    remove_tree(self.path, disk=self._disk)
        self.leave()

    def leave(self) -> None:
        """Lets go of the draft: from now on it is a dead saver's, if it is one still."""
        let_go(self._lock)
        self._lock = None

    def _place(self, relative: str) -> Path:
        """Where a file goes; its folder is made."""
        path = self.path / relative
        if path.parent != self.path:
            make_folders(path.parent, disk=self._disk)
        return path

    def _write_manifest(self, manifest: Manifest) -> None:
        try:
            data = dump_manifest(manifest)
        except UsageError as error:
            # The files are written by now: whatever a field is, it is no longer the call that makes no sense.
            raise CheckpointError(str(error)) from error
        fd = self._disk.open_new(self.path / MANIFEST_NAME)
        try:
            Stream(fd, disk=self._disk).write(data)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        self._disk.sync_folder(self.path)

    def _clear_the_name(self, manifest: Manifest) -> None:
        """Refuses a name that is another's; moves a damaged checkpoint of ours out of the way."""
        target = self._target
        refuse_taken(target, run_id=manifest.run_id, step=manifest.step)
        if not os.path.lexists(target):
            return
        try:
            read_manifest(target)
        except CheckpointError as error:
            # Nobody can load it, and a run that goes over this step again must be able to save.
            aside = target.with_name(f"{target.name}.damaged-{secrets.token_hex(4)}")
            self._disk.rename(target, aside)
            warn("resume", f"{error}; it is now {plain(str(aside))}, and the new checkpoint takes its name")

    def _took_name(self, manifest: Manifest) -> bool:
        """Takes a name that is free; False where another process saved the same step just now."""
        self._write_manifest(manifest)
        try:
            self._disk.rename(self.path, self._target)
        except OSError as error:
            if error.errno not in _ALREADY_THERE:
                raise
            self._disk.remove(self.path / MANIFEST_NAME)
            return False
        self._is_committed = True
        self._disk.sync_folder(self._target.parent)
        return True

    def _take_place(self, manifest: Manifest) -> None:
        """Takes the place of a checkpoint of the same run and step, at one moment."""
        target, inside = self._target, name_inside(self.path.name)
        with one_at_a_time(target.parent):
            old = read_manifest(target)
            refuse_taken(target, run_id=manifest.run_id, step=manifest.step)
            self._write_manifest(_moved(manifest, inside, old=old))
            self._disk.rename(self.path, target / inside)
            self.path = target / inside
            self._disk.sync_folder(target)
            self._disk.replace(self.path / MANIFEST_NAME, target / MANIFEST_NAME)
            self._is_committed = True
            self._disk.sync_folder(target)
            # The new one stands; what of the old one cannot be removed now goes with a later save.
            with suppress(OSError):
                remove_replaced(target, disk=self._disk)


def refuse_taken(target: Path, *, run_id: str | None, step: int) -> None:
    """Refuses a name that stands for what is not this run's to replace; of a damaged checkpoint nobody knows.

    Args:
        target: What the checkpoint would be called.
        run_id: The run that saves.
        step: Its step.

    Raises:
        CheckpointError: It is another run's, another step's, or no checkpoint of ours.
    """
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not (target / MANIFEST_NAME).is_file():
        raise CheckpointError(
            f"{plain(str(target))} is no checkpoint of Trimtab's, and stands where one would be saved: nothing was "
            "overwritten. Move it away, or save into another folder"
        )
    try:
        found = read_manifest(target)
    except CheckpointError:
        return
    if (found.run_id, found.step) != (run_id, step):
        raise CheckpointError(
            f"{plain(str(target))} is step {found.step} of run {plain(str(found.run_id))}, and this would be step "
            f"{step} of run {plain(str(run_id))}: nothing was overwritten. Save into another folder, load that "
            "checkpoint first to go on with its run, or move it away"
        )


def _moved(manifest: Manifest, inside: str, *, old: Manifest) -> Manifest:
    """The manifest of a draft that moves into the checkpoint whose place it takes."""
    replaced = {*replaced_by(old), *(entry.path for entry in old.files)}
    return replace(
        manifest,
        files=tuple(replace(entry, path=f"{inside}/{entry.path}") for entry in manifest.files),
        parts={part: tuple(f"{inside}/{path}" for path in paths) for part, paths in manifest.parts.items()},
        # What is in a folder like its own goes with that folder.
        facts={**manifest.facts, REPLACES: sorted(path for path in replaced if not is_inside(path.partition("/")[0]))},
    )
