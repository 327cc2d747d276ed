"""Describes a Trainer's checkpoint once it is whole: `checkpoint-N/trimtab_manifest.json`, beside transformers' files.

Enters: a folder into which the trainer has written on every rank, and what the trainer knows of it. Leaves: the
manifest; or one line where the disk refuses it. Invariant: a training goes on whatever becomes of its manifest.
"""

from __future__ import annotations

import functools
from importlib.metadata import version
from pathlib import Path
from typing import Final

from trimtab.errors import TrimtabError
from trimtab.integrations.hf_checkpoint import STATE_NAME
from trimtab.notices import warn_once
from trimtab.resume.describe import Saved, describe
from trimtab.resume.foreign.hf import STATE_NAME as TRAINER_STATE
from trimtab.resume.foreign.hf import part_of_file
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest
from trimtab.text import plain

_PARTS_IN: Final = {TRAINER_STATE: ("step", "data", "loss", "best_eval"), STATE_NAME: ("guard", "recorder", "watch")}
"""What stands in the two files that describe a training. Where its data are, transformers counts from the step."""


def write_manifest(folder: Path, saved: Saved) -> Manifest | None:
    """Reads what is in a checkpoint, syncs it and writes its manifest; never raises for what the disk does.

    Args:
        folder: The checkpoint, whole, of every rank that shares this disk.
        saved: What the trainer knows of it.

    Returns:
        The manifest; None where it could not be written, of which a line is said once.
    """
    parts_of = functools.partial(_parts, has=saved.has)
    versions = {name: version(name) for name in ("torch", "transformers")}
    try:
        return describe(folder, saved, saver="transformers", parts_of=parts_of, versions=versions)
    except (OSError, TrimtabError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else ""
        warn_once(
            "hf",
            f"{plain(str(folder))} has no {MANIFEST_NAME} ({plain(why or str(error))}): whether its files are whole "
            "and its weights healthy cannot be told later. The training goes on. Said once.",
            cause="manifest not written",
        )
        return None


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
