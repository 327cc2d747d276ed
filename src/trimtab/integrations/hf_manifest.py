"""Describes a Trainer's checkpoint once it is whole: `checkpoint-N/trimtab_manifest.json`, beside transformers' files.

Enters: a folder into which the trainer has written on every rank, and what the trainer knows of it. Leaves: the
manifest, with the size and checksum of every file, written last; or one line where the disk refuses it. Invariants:
what transformers wrote is read and synced, never changed; a training goes on whatever becomes of its manifest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from trimtab.disk import NEW_SUFFIX, sync_path, write_whole
from trimtab.errors import TrimtabError
from trimtab.integrations.hf_checkpoint import STATE_NAME
from trimtab.notices import warn_once
from trimtab.resume.checksum import read_checksum
from trimtab.resume.foreign.hf import STATE_NAME as TRAINER_STATE
from trimtab.resume.foreign.hf import part_of_file
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest, dump_manifest, read_manifest
from trimtab.resume.names import scan
from trimtab.text import plain

_PARTS_IN: Final = {TRAINER_STATE: ("step", "data", "loss", "best_eval"), STATE_NAME: ("guard", "recorder")}
"""What stands in the two files that describe a training. Where its data are, transformers counts from the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a trainer knows of the checkpoint that it has just written.

    Attributes:
        step: The optimizer step after which it was saved.
        run_id: The run; None where nothing is recorded.
        world_size: Ranks that wrote it.
        has: Parts that the training has, whether or not they were saved.
        unhealthy_because: Why the weights are not healthy, a sentence each; none where they are.
        loss: The loss that the trainer logged last; None before the first.
        lr: Learning rate of each parameter group.
        facts: Further JSON-ready facts.
    """

    step: int
    run_id: str | None
    world_size: int
    has: frozenset[str]
    unhealthy_because: tuple[str, ...]
    loss: float | None
    lr: tuple[float, ...]
    facts: Mapping[str, Any]


def write_manifest(folder: Path, saved: Saved) -> Manifest | None:
    """Reads what is in a checkpoint, syncs it and writes its manifest; never raises for what the disk does.

    Args:
        folder: The checkpoint, whole, of every rank that shares this disk.
        saved: What the trainer knows of it.

    Returns:
        The manifest; None where it could not be written, of which a line is said once.
    """
    path = folder / MANIFEST_NAME
    try:
        _forget_manifest(folder)  # until the new one is there the checkpoint is one without
        files = tuple(_entries(folder))
        manifest = Manifest(
            saver="transformers",
            step=saved.step,
            run_id=saved.run_id,
            serial=_last_serial(folder) + 1,
            parts=_parts(files, has=saved.has),
            files=files,
            world_size=saved.world_size,
            healthy=not saved.unhealthy_because,
            unhealthy_because=saved.unhealthy_because,
            loss=saved.loss,
            lr=saved.lr,
            saved_at=time.time(),
            versions={name: version(name) for name in ("torch", "transformers")},
            facts=saved.facts,
        )
        write_whole(path, dump_manifest(manifest))
        sync_path(folder)
        sync_path(folder.parent)
    except (OSError, TrimtabError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else ""
        with suppress(OSError):
            _forget_manifest(folder)
        warn_once(
            "hf",
            f"{plain(str(folder))} has no {MANIFEST_NAME} ({plain(why or str(error))}): whether its files are whole "
            "and its weights healthy cannot be told later. The training goes on. Said once.",
            cause="manifest not written",
        )
        return None
    return manifest


def _forget_manifest(folder: Path) -> None:
    for name in (MANIFEST_NAME, MANIFEST_NAME + NEW_SUFFIX):
        (folder / name).unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[FileEntry]:
    """Every file in a checkpoint, read once and then synced: transformers leaves that to the system's own time."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size_bytes, crc32 = read_checksum(path)
        sync_path(path)
        yield FileEntry(path=path.relative_to(folder).as_posix(), size_bytes=size_bytes, crc32=crc32)


def _last_serial(folder: Path) -> int:
    """The highest place among the saves beside a checkpoint; 0 where it is the first."""
    serials = [0]
    for name in scan(folder.parent).found:
        with suppress(TrimtabError):
            serials.append(read_manifest(name.path).serial)
    return max(serials)


def _parts(files: tuple[FileEntry, ...], *, has: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Which files hold which part; none of a part that the training has and that was not saved."""
    parts: dict[str, list[str]] = {name: [] for name in has}
    for entry in files:
        name = part_of_file(entry.path)
        if name is not None:
            parts.setdefault(name, []).append(entry.path)
    there = {entry.path for entry in files}
    for file, names in _PARTS_IN.items():
        for name in has.intersection(names):
            parts[name] = [file] if file in there else []
    return {name: tuple(paths) for name, paths in parts.items()}
