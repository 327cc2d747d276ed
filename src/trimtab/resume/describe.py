"""Writes the manifest of a checkpoint that somebody else has saved: beside their files, once they are whole.

Enters: a folder, and what whoever trains knows of it. Leaves: `trimtab_manifest.json` in it, with the size and checksum
of every file, written last. Invariants: the files of others are read and synced, never changed; where anything fails
the checkpoint is one without a manifest, and never one with a wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.disk import NEW_SUFFIX, sync_path, write_whole
from trimtab.errors import CheckpointError
from trimtab.resume.checksum import read_checksum
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest, ResumedFrom, Saver, dump_manifest, read_manifest
from trimtab.resume.names import scan

PartsOf = Callable[[tuple[FileEntry, ...]], Mapping[str, tuple[str, ...]]]
"""Which files hold which part; none of a part that the training has and that was not saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What whoever trains knows of the checkpoint that was just written.

    Attributes:
        step: The optimizer step after which it was saved.
        run_id: The run; None where nothing is recorded.
        world_size: Ranks that wrote it.
        has: Parts that the training has, whether or not they were saved.
        unhealthy_because: Why the weights are not healthy, a sentence each; none where they are.
        unhealthy_since: Last step at which all of that was known to be well; None where nobody knows.
        loss: The loss that was logged last; None before the first.
        lr: Learning rate of each parameter group.
        resumed_from: The load that the training went on from; None where it began anew.
        facts: Further JSON-ready facts.
    """

    step: int
    run_id: str | None
    world_size: int
    has: frozenset[str]
    unhealthy_because: tuple[str, ...]
    unhealthy_since: int | None
    loss: float | None
    lr: tuple[float, ...]
    resumed_from: ResumedFrom | None
    facts: Mapping[str, Any]


def describe(folder: Path, saved: Saved, *, saver: Saver, parts_of: PartsOf, versions: Mapping[str, str]) -> Manifest:
    """Reads what is in a checkpoint, syncs it and writes its manifest.

    Args:
        folder: The checkpoint, whole, of every rank that shares this disk.
        saved: What is known of it.
        saver: Who wrote its files.
        parts_of: Called with every file in it.
        versions: Of the packages that saved it.

    Returns:
        The manifest.

    Raises:
        OSError: The disk failed, or is full.
        UsageError: Something that is known of it does not fit into a manifest.
    """
    _forget(folder)  # until the new one is there the checkpoint is one without
    try:
        files = tuple(_entries(folder))
        manifest = Manifest(
            saver=saver,
            step=saved.step,
            run_id=saved.run_id,
            serial=next_serial(folder.parent),
            resumed_from=saved.resumed_from,
            parts=parts_of(files),
            files=files,
            world_size=saved.world_size,
            healthy=not saved.unhealthy_because,
            unhealthy_because=saved.unhealthy_because,
            unhealthy_since=saved.unhealthy_since,
            loss=saved.loss,
            lr=saved.lr,
            saved_at=time.time(),
            versions=versions,
            facts=saved.facts,
        )
        write_whole(folder / MANIFEST_NAME, dump_manifest(manifest))
        sync_path(folder)
        sync_path(folder.parent)
    except BaseException:
        with suppress(OSError):
            _forget(folder)
        raise
    return manifest


def last_serial(folder: Path) -> int:
    """The highest place among the saves in a folder of checkpoints; 0 where there is none, or no such folder."""
    serials = [0]
    with suppress(CheckpointError):
        for name in scan(folder).found:
            with suppress(CheckpointError):
                serials.append(read_manifest(name.path).serial)
    return max(serials)


def next_serial(folder: Path) -> int:
    """The place of the next save into a folder of checkpoints."""
    return last_serial(folder) + 1


def _forget(folder: Path) -> None:
    for name in (MANIFEST_NAME, MANIFEST_NAME + NEW_SUFFIX):
        (folder / name).unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[FileEntry]:
    """Every file in a checkpoint, read once and then synced: others leave that to the system's own time."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size_bytes, crc32 = read_checksum(path)
        sync_path(path)
        yield FileEntry(path=path.relative_to(folder).as_posix(), size_bytes=size_bytes, crc32=crc32)
