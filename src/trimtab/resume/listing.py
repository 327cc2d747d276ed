"""What each checkpoint of a folder says of itself, and which run each is of; no payload is read.

Enters: a folder. Leaves: a `CheckpointInfo` for each checkpoint by its name. Invariant: a checkpoint that vanishes
meanwhile, or that says nonsense, is one with a problem, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.content import find_size_problems
from trimtab.resume.doubt import with_doubts
from trimtab.resume.foreign import FORMATS
from trimtab.resume.foreign.format import Format
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.lineage import with_abandoned
from trimtab.resume.manifest import MANIFEST_NAME, Manifest, has_manifest, read_manifest
from trimtab.resume.names import OURS, CheckpointName, Entries, named, scan
from trimtab.resume.parts import in_order, missing_parts
from trimtab.text import listed, plain

GONE: Final = "removed while it was looked at"

MAX_NAMED: Final = 10
"""Entries told of a folder without a manifest."""


def list_checkpoints(folder: str | os.PathLike[str], *, entries: Entries | None = None) -> tuple[CheckpointInfo, ...]:
    """All checkpoints of a folder, newest first, of whatever runs; sizes are compared, and no payload is read.

    Args:
        folder: The folder that holds them.
        entries: What a scan of it has just found; None: it is scanned.

    Returns:
        One value each; `problem` says what is wrong with one, as far as that shows without reading its payload.

    Raises:
        CheckpointError: There is no such folder, or it cannot be listed.
    """
    infos = []
    for name in (scan(folder) if entries is None else entries).found:
        info, manifest = look_at(name)
        if manifest is not None and info.problem is None:
            info = replace(info, problem=next(iter(find_size_problems(name.path, manifest)), None))
        elif info.problem is None:
            info = _at_a_glance(info)
        infos.append(info)
    return in_order_of_age(with_doubts(with_abandoned(infos)))


def _at_a_glance(info: CheckpointInfo) -> CheckpointInfo:
    """A checkpoint without a manifest, with what the names and sizes of its files tell."""
    known = format_of(info.path)
    if known is None:
        return info
    found = known.inspect(info.path, reads=False)
    return replace(
        info,
        parts=found.parts,
        missing=found.missing,
        size_bytes=found.size_bytes,
        problem=next(iter(found.problems), None),
    )


def look_at(name: CheckpointName) -> tuple[CheckpointInfo, Manifest | None]:
    """What a checkpoint says of itself, and its manifest; None where it has none that can be read."""
    info = info_of_name(name.path, name=name)
    try:
        if has_manifest(name.path):
            manifest = read_manifest(name.path)
            info = info_of(name.path, manifest)
            if manifest.step != name.step:
                info = replace(info, step=name.step, problem=other_step(name.path, manifest.step))
            return info, manifest
    except CheckpointError as error:
        return replace(info, promise="checksums", problem=_gone(name.path) or str(error)), None
    return replace(info, problem=_gone(name.path) or (no_manifest(name.path) if name.saver == OURS else None)), None


def info_of_name(path: Path, *, name: CheckpointName | None = None) -> CheckpointInfo:
    """A checkpoint of which no more is known than what it is called."""
    name = name or named(path)
    known = format_of(path) if name is None else None
    saver = name.saver if name is not None else known.saver if known is not None else OURS
    step = 0 if name is None else name.step
    return CheckpointInfo(path=path, step=step, healthy=None, saver=saver, promise="structure")


def format_of(path: Path) -> Format | None:
    """The format of a checkpoint without a manifest; None where it is none, or is called as ours are."""
    name = named(path)
    if name is not None:
        return next((known for known in FORMATS if known.saver == name.saver), None)
    return next((known for known in FORMATS if known.recognises(path)), None)


def info_of(path: Path, manifest: Manifest) -> CheckpointInfo:
    """A checkpoint as its manifest describes it."""
    return CheckpointInfo(
        path=path,
        step=manifest.step,
        healthy=manifest.healthy,
        unhealthy_because=manifest.unhealthy_because,
        unhealthy_since=manifest.unhealthy_since,
        run_id=manifest.run_id,
        serial=manifest.serial,
        resumed_from=manifest.resumed_from,
        saver=manifest.saver,
        parts=in_order(name for name, files in manifest.parts.items() if files),
        missing=missing_parts(manifest.parts),
        loss=manifest.loss,
        lr=manifest.lr,
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
    )


def in_order_of_age(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints, the highest step first.

    Of several of one step the one that was saved last comes first; a copy says that it was saved when its original
    was, and the original is the one without further zeros in its number.
    """
    return tuple(sorted(infos, key=lambda info: (-info.step, -(info.serial or 0), len(info.path.name), info.path.name)))


def other_step(path: Path, step: int) -> str | None:
    """What is wrong with a checkpoint that was saved after another step than its name says; None if that is its own."""
    name = named(path)
    if name is None or name.step == step:
        return None
    return (
        f"called {plain(path.name)} and saved after step {step}: it was copied or renamed. Give it back the name that "
        "its step has"
    )


def no_manifest(folder: Path) -> str:
    """What is wrong with a folder that has no manifest: one is written last, so nobody ever said that it is whole."""
    try:
        with os.scandir(folder) as entries:
            there = sorted(entry.name for entry in entries)
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
    inside = [name for name in there if named(folder / name) is not None]
    if inside:
        held = listed(map(plain, inside), most=MAX_NAMED)
        return f"holds checkpoints and is none itself ({held}): pick finds the right one among them, or name one"
    held = listed(map(plain, there), most=MAX_NAMED) if there else "nothing"
    return f"no {MANIFEST_NAME}, which a save writes last; it holds {held}"


def is_gone(path: Path) -> bool:
    """Whether a checkpoint that was listed is not there any more."""
    return not os.path.lexists(path)


def _gone(path: Path) -> str | None:
    return GONE if is_gone(path) else None
