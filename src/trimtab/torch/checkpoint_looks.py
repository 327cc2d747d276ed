"""`Looks`: what this process has read whole, so that nothing is read a second time that has not changed since.

Enters: paths of checkpoints. Leaves: an `Examined`. Invariant: what is remembered of a checkpoint is taken for no other
one: whoever writes into one of its files, or goes over its step again, changes what the system says of the files (size,
inode, time of the last change). No decision between checkpoints is made by these: where one differs, all is read again.

A rotation relies on the new checkpoint and on the last healthy one, after each save; `load(pick())` on what `pick` has
read a moment before. What a disk loses in the meantime without a write, no read before the load would have seen.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from trimtab.errors import CheckpointError
from trimtab.resume.content import unlisted
from trimtab.resume.examine import Examined, examine
from trimtab.resume.info import CheckpointInfo

_Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file of a folder: path, size, inode, time of the last change."""


class Looks:
    """What was found in the checkpoints that were read whole."""

    def __init__(self) -> None:
        self._found: dict[Path, tuple[_Stamp, Examined]] = {}

    def at(self, path: Path, *, needs: Collection[str] | None = None, again: bool = False) -> Examined:
        """Reads a checkpoint, if it is not the one that was read before and found whole.

        Args:
            path: Its absolute path.
            needs: As in `examine`.
            again: Whether it is read in any case.

        Raises:
            CheckpointError: There is nothing at this path.
        """
        stamp = _stamp(path)
        known = self._found.get(path)
        if not again and known is not None and known[0] == stamp:
            return known[1]
        found = examine(path, needs=needs)
        if stamp is not None and stamp == _stamp(path):
            self._keep(path, stamp, found)
        return found

    def was_picked(self, info: CheckpointInfo) -> None:
        """Takes in what `pick` has read."""
        stamp = _stamp(info.path)
        if stamp is None:
            return
        try:
            found = examine(info.path, needs=None, reads=False)
        except CheckpointError:
            return
        # Of the save that was picked, and no other that took its place since.
        if found.manifest is not None and (found.info.run_id, found.info.serial) == (info.run_id, info.serial):
            self._keep(info.path, stamp, replace(found, notes=unlisted(info.path, found.manifest)))

    def _keep(self, path: Path, stamp: _Stamp, found: Examined) -> None:
        if found.manifest is not None and not found.problems and not found.info.missing:
            # Of what a rotation has deleted since nobody asks again.
            self._found = {earlier: look for earlier, look in self._found.items() if earlier.exists()}
            self._found[path] = (stamp, found)


def _stamp(path: Path) -> _Stamp | None:
    """What the system says of the files; None where that is no folder that can be looked through."""
    if not path.is_dir():
        return None
    found = []
    try:
        for place, _, files in os.walk(path, onerror=_raise):
            for file in map(Path(place).joinpath, files):
                of_file = file.stat()
                found.append((str(file), of_file.st_size, of_file.st_ino, of_file.st_ctime_ns))
    except OSError:
        return None
    return tuple(sorted(found))


def _raise(error: OSError) -> None:
    raise error
