"""May a run go on from this checkpoint? The one place that looks: `verify`, `pick` and every load ask here.

    its manifest -> the parts that are needed -> sizes of all files -> checksum of each -> is that still its manifest?

Enters: the path of one checkpoint. Leaves: an `Examined`, from which whoever asks decides. Invariants: the manifest in
it is the one that the bytes were held against, even where a run went over the step meanwhile; no payload is read of one
that lacks what is needed; nothing in a checkpoint is run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.checksum import Progress
from trimtab.resume.content import find_problems, find_size_problems, unlisted
from trimtab.resume.foreign.inspected import Inspected
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import GONE, format_of, info_of, info_of_name, is_gone, no_manifest, other_step
from trimtab.resume.manifest import Manifest, has_manifest, read_with_checksum
from trimtab.resume.names import named
from trimtab.resume.parts import FRESH_START
from trimtab.text import listed, plain

MAX_LOOKS: Final = 3
"""Looks at a checkpoint that another process replaces meanwhile."""

STRUCTURE_ONLY: Final = (
    "no manifest of Trimtab: lengths and layout are checked, a changed byte in a weight may not show, and health is "
    "not known"
)
"""What the weaker promise is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a look at one checkpoint found.

    Attributes:
        info: What it says of itself.
        manifest: The manifest that its files were held against; None where it has none that can be read.
        problems: What is wrong with it, a sentence each, in plain ASCII; none where it is what was saved.
        needs_pickle: Whether all of `problems` are that nothing but pickle would load a file: no damage was found.
        missing: Those of the parts that were asked for that it does not hold, by name; `info.missing` has all that a
            resume lacks.
        notes: What is no damage and yet worth a line, a clause each.
        step: The step that its manifest, its name or its files say; None where none does, and `info.step` is 0.
        num_files: Files that it has.
        manifest_crc32: The checksum that `manifest` is under; None where it has none that can be read.
    """

    info: CheckpointInfo
    manifest: Manifest | None
    problems: tuple[str, ...] = ()
    needs_pickle: bool = False
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    step: int | None = None
    num_files: int = 0
    manifest_crc32: int | None = None

    @property
    def lacks(self) -> str | None:
        """That it lacks what was asked for, as a clause; None if it does not."""
        return lacking(self.missing) if self.missing else None


def examine(
    path: str | os.PathLike[str],
    *,
    needs: Collection[str] | None = None,
    reads: bool = True,
    optional: Collection[str] = (),
    most: int | None = None,
    progress: Progress | None = None,
) -> Examined:
    """Looks at one checkpoint, as it is now; its health is in `info`, and for the caller to judge.

    Args:
        path: A folder with a manifest, a checkpoint folder of somebody else's, or a file.
        needs: Parts without which it is of no use, by name; None: all that its run has. Of one that lacks one of them
            no payload is read.
        reads: Whether its payload is read; otherwise the sizes alone are looked at, and nothing of one that has no
            manifest.
        optional: Files, by their paths in it, that may have been removed.
        most: Problems after which no more are looked for; None: all of them.
        progress: Called now and then with how many more bytes were read.

    Raises:
        CheckpointError: There is nothing at this path.
    """
    place = Path(path)
    if is_gone(place):
        raise CheckpointError(
            f"{plain(str(place))}: nothing is there, expected a checkpoint. `trimtab ckpt ls FOLDER` lists those in a "
            "folder"
        )
    if not has_manifest(place):
        return _examine_foreign(place, needs=needs, reads=reads, progress=progress)
    try:
        for _ in range(MAX_LOOKS):
            manifest, crc32 = read_with_checksum(place)
            found = _compare(place, manifest, needs=needs, reads=reads, optional=optional, most=most, progress=progress)
            # A run that goes over a step again puts another manifest there, and then removes what the old one lists.
            if not found.problems or is_same_save(read_with_checksum(place)[0], manifest):
                break
    except CheckpointError as error:
        problem = GONE if is_gone(place) else str(error)
        info = replace(info_of_name(place), promise="checksums", problem=problem)
        return Examined(info=info, manifest=None, problems=(problem,), step=_step_in_name(place))
    return replace(found, manifest_crc32=crc32)


def is_same_save(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests of one path are of the same payload."""
    return (one.run_id, one.serial, one.files) == (other.run_id, other.serial, other.files)


def lacking(missing: Collection[str]) -> str:
    """What keeps a run from going on from a checkpoint without these parts, as a clause."""
    fresh = "" if "model" in missing else f"; {FRESH_START}"
    return f"lacks {plain(listed(missing))}, which a resume needs{fresh}"


def _compare(
    path: Path,
    manifest: Manifest,
    *,
    needs: Collection[str] | None,
    reads: bool,
    optional: Collection[str],
    most: int | None,
    progress: Progress | None,
) -> Examined:
    info = info_of(path, manifest)
    missing = _missing(info, needs)
    expected = replace(
        manifest,
        files=tuple(entry for entry in manifest.files if entry.path not in optional or not is_gone(path / entry.path)),
    )
    wrong_name = other_step(path, manifest.step)
    problems = [] if wrong_name is None else [wrong_name]
    if reads and not missing:
        # The first alone of what may be hundreds of gigabytes: nothing is read behind it.
        problems += islice(
            find_problems(path, expected, progress=progress), None if most is None else most - len(problems)
        )
    else:
        problems += find_size_problems(path, expected)
    return Examined(
        info=info,
        manifest=manifest,
        problems=tuple(problems[:most]),
        missing=missing,
        notes=unlisted(path, manifest) if reads else (),
        step=manifest.step,
        num_files=len(manifest.files),
    )


def _examine_foreign(path: Path, *, needs: Collection[str] | None, reads: bool, progress: Progress | None) -> Examined:
    info = info_of_name(path)
    if not reads:
        return Examined(info=info, manifest=None, step=_step_in_name(path))
    found = _inspect(path, progress=progress)
    if is_gone(path):
        found = replace(found, problems=(GONE,), needs_pickle=False)
    step = _step_in_name(path)
    step = found.step if step is None else step
    info = replace(
        info,
        step=step or 0,
        parts=found.parts,
        missing=found.missing,
        loss=found.loss,
        size_bytes=found.size_bytes,
        problem=next(iter(found.problems), None),
    )
    return Examined(
        info=info,
        manifest=None,
        problems=found.problems,
        needs_pickle=found.needs_pickle,
        missing=_missing(info, needs),
        notes=(STRUCTURE_ONLY, *found.notes),
        step=step,
        num_files=found.num_files,
    )


def _inspect(path: Path, *, progress: Progress | None) -> Inspected:
    """What shows of a checkpoint without a manifest."""
    known = format_of(path)
    if known is None:
        return Inspected(parts=(), problems=(no_manifest(path),))
    return known.inspect(path, progress=progress)


def _missing(info: CheckpointInfo, needs: Collection[str] | None) -> tuple[str, ...]:
    return info.missing if needs is None else tuple(name for name in info.missing if name in needs)


def _step_in_name(path: Path) -> int | None:
    name = named(path)
    return None if name is None else name.step
