"""Which folders and checkpoints a path on the command line means: itself, or what stands one level below it.

Enters: a path. Leaves: folders with what a scan of each found, or the checkpoints in them, and what could not be looked
into. Invariants: each folder is scanned once, and one that may not be listed, or a link that leads nowhere, hides no
other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import has_manifest
from trimtab.resume.names import Entries, Ignored, kind_of, named, scan
from trimtab.text import plain

MAX_FOLDERS: Final = 1_000
"""Folders below the one that was named in which checkpoints are looked for."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders to look in.

    Attributes:
        folders: Each, with what stands in it.
        passed_over: What beside them could not be looked into.
    """

    folders: dict[Path, Entries]
    passed_over: tuple[Ignored, ...] = ()


def find_places(place: Path) -> Places:
    """The folder that was named, or those below it that hold checkpoints where it holds none itself.

    Raises:
        CheckpointError: It is none, or a checkpoint itself.
    """
    if is_checkpoint(place):
        raise CheckpointError(
            f"{plain(str(place))} is a checkpoint itself. List the folder that holds it, or check it with: "
            "trimtab ckpt verify PATH"
        )
    here = scan(place)
    if here.found:
        return Places({place: here})
    names: dict[str, list[str]] = {"folder": [], "file": [], "other": []}
    with os.scandir(place) as entries:
        for entry in entries:
            names[kind_of(entry)].append(entry.name)
    below, closed = _look_below(place, sorted(names["folder"]))
    if not below:
        return Places({place: here}, closed)
    others = tuple(Ignored(place / name, "neither a file nor a folder") for name in sorted(names["other"]))
    return Places(below, (*closed, *others))


def _look_below(place: Path, names: Sequence[str]) -> tuple[dict[Path, Entries], tuple[Ignored, ...]]:
    """The folders that hold checkpoints, and those that could not be looked into: no reason to list no other."""
    found: dict[Path, Entries] = {}
    closed: list[Ignored] = []
    for name in names[:MAX_FOLDERS]:
        try:
            entries = scan(place / name)
        except CheckpointError as error:
            why = getattr(error.__cause__, "strerror", None) or "its name is none"
            closed.append(Ignored(place / name, f"cannot be listed ({why})"))
        else:
            if entries.found:
                found[place / name] = entries
    if len(names) > MAX_FOLDERS:
        closed.append(Ignored(place, f"{len(names) - MAX_FOLDERS:,} more folders in it were not looked into"))
    return found, tuple(closed)


def one_folder(place: Path) -> tuple[Path, Entries, list[str]]:
    """The folder to pick from, what stands in it, and what to say of that.

    Raises:
        CheckpointError: Several below the one that was named hold checkpoints, and it holds none itself.
    """
    if is_checkpoint(place):
        return place, scan(place), []  # said well by `pick`
    places = find_places(place)
    folders = list(places.folders)
    if len(folders) > 1:
        names = ", ".join(plain(str(folder)) for folder in folders[:5]) + (", ..." if len(folders) > 5 else "")
        raise CheckpointError(
            f"{plain(str(place))} holds no checkpoint itself, and {len(folders)} folders in it do. Name one: {names}"
        )
    folder = folders[0]
    notices = [f"{plain(entry.path.name)} was not looked into: {entry.reason}" for entry in places.passed_over]
    if folder != place:
        notices.insert(0, f"{plain(str(place))} holds no checkpoint itself: {plain(str(folder))} does")
    return folder, places.folders[folder], notices


def checkpoints_at(place: Path) -> tuple[list[Path], tuple[Ignored, ...]]:
    """The checkpoints behind a path: itself, or those in it; and what could not be looked into.

    Raises:
        CheckpointError: There is none.
    """
    if is_checkpoint(place) or not place.is_dir():
        return [place], ()
    places = find_places(place)
    listed = [list_checkpoints(folder, entries=entries) for folder, entries in places.folders.items()]
    found = [info.path for infos in listed for info in infos]
    if not found:
        raise CheckpointError(
            f"{plain(str(place))} holds no checkpoint, expected step_500, checkpoint-500 or a file step_500.pt. Name "
            "another folder; trimtab ckpt ls PATH says what stands in one"
        )
    return found, places.passed_over


def is_checkpoint(place: Path) -> bool:
    """Whether a path is a checkpoint, and no folder of them."""
    return has_manifest(place) or (named(place) is not None and os.path.lexists(place))
