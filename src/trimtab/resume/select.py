"""Which checkpoint to go on from: the newest of a run that is complete, whole and, where that is asked, healthy.

    scan -> look at each manifest -> the run -> newest first: complete? healthy? every byte? -> the first that is

Enters: a folder. Leaves: a `CheckpointInfo`, or a `CheckpointError` that says why there is none. Invariants: steps are
compared as numbers and no clock decides; the payload of a candidate is read only once all newer ones were refused, and
that of any other never.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.info import CheckpointInfo, Refused
from trimtab.resume.listing import GONE, info_of, is_gone, list_checkpoints, look_at, unusable
from trimtab.resume.manifest import MANIFEST_NAME, Manifest, read_manifest
from trimtab.resume.names import EXPECTED, Ignored, scan
from trimtab.resume.parts import FRESH_START, listed
from trimtab.resume.runs import choose_run, told
from trimtab.resume.verify import STRUCTURE_ONLY, Progress, find_problems, has_manifest, inspect
from trimtab.text import plain

__all__ = ["list_checkpoints", "pick"]

MAX_LOOKS: Final = 3
"""Looks at a folder in which another process saves and removes: what vanished under one is not there for the next."""

MAX_NAMED: Final = 10
"""Checkpoints, and other entries, that an error tells one by one."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    healthy: bool
    before_step: int | None


def pick(
    folder: str | os.PathLike[str],
    *,
    healthy: bool = False,
    run_id: str | None = None,
    before_step: int | None = None,
    progress: Progress | None = None,
) -> CheckpointInfo:
    """Finds the checkpoint to go on from.

    Args:
        folder: The folder that holds the checkpoints.
        healthy: Whether to pass over those that were not healthy when they were saved, or of which nobody knows.
        run_id: The run; None: the one that saved last.
        before_step: The checkpoint must be of an earlier step; None: of any.
        progress: Called now and then with how many more bytes were read.

    Returns:
        The newest one that is complete and that is what was saved; `refused` says why each newer one is not.

    Raises:
        CheckpointError: There is none, or no such folder; says why each was refused and what to do.

    Example:
        info = pick("runs", healthy=True)
        print(info.path, info.step, *info.notices)
    """
    place = Path(folder)
    wanted = _Wanted(healthy, before_step)
    for _ in range(MAX_LOOKS):
        listing = scan(place)
        choice = choose_run([look_at(name)[0] for name in listing.found], folder=place, run_id=run_id)
        refused: list[Refused] = []
        for candidate in choice.candidates:
            info, why = _examine(candidate, wanted, progress)
            if why is None:
                return replace(
                    info,
                    refused=tuple(refused),
                    ignored=listing.ignored,
                    notices=(*info.notices, *choice.notices, *_on_choice(info, choice.candidates, run_id=run_id)),
                )
            refused.append(Refused(info.path, why))
        if not any(is_gone(entry.path) for entry in refused):
            break
    raise CheckpointError(_nothing(place, refused, listing.ignored, wanted=wanted, notices=choice.notices))


def _examine(info: CheckpointInfo, wanted: _Wanted, progress: Progress | None) -> tuple[CheckpointInfo, str | None]:
    """A candidate as it is now, and why it is not taken; None if it is."""
    why = _why_not(info, wanted)
    if why is not None:
        return info, why
    if info.promise == "structure":
        return _examine_structure(info, progress)
    for _ in range(MAX_LOOKS):
        try:
            manifest = read_manifest(info.path)
            info = info_of(info.path, manifest)
            why = _why_not(info, wanted) or next(find_problems(info.path, manifest, progress=progress), None)
            # A run that goes over a step again puts another manifest there, and then removes what the old one lists.
            if why is None or _is_same_save(read_manifest(info.path), manifest):
                break
        except CheckpointError as error:
            return info, GONE if is_gone(info.path) else unusable(error)
    return info, why


def _is_same_save(one: Manifest, other: Manifest) -> bool:
    return (one.run_id, one.serial, one.files) == (other.run_id, other.serial, other.files)


def _why_not(info: CheckpointInfo, wanted: _Wanted) -> str | None:
    """Why a candidate is not taken, as far as its manifest says."""
    if info.problem is not None:
        return info.problem
    if wanted.before_step is not None and info.step >= wanted.before_step:
        return f"not before step {wanted.before_step}"
    if wanted.healthy and info.healthy is None:
        return f"no {MANIFEST_NAME}, so that its health is not known"
    if wanted.healthy and not info.healthy:
        return f"not healthy: {plain('; '.join(info.unhealthy_because) or 'its manifest does not say why')}"
    if info.missing:
        return _incomplete(info.missing)
    return None


def _examine_structure(info: CheckpointInfo, progress: Progress | None) -> tuple[CheckpointInfo, str | None]:
    found = inspect(info.path, progress=progress)
    info = replace(
        info, parts=found.parts, missing=found.missing, loss=found.loss, size_bytes=found.size_bytes, notices=()
    )
    if is_gone(info.path):
        return info, GONE
    if found.problems:
        return info, found.problems[0]
    if found.missing:
        return info, _incomplete(found.missing)
    name = plain(info.path.name)
    return replace(info, notices=tuple(f"{name}: {note}" for note in (STRUCTURE_ONLY, *found.notes))), None


def _incomplete(missing: Sequence[str]) -> str:
    return f"lacks {plain(listed(missing))}, which a resume needs; {FRESH_START}"


def _on_choice(info: CheckpointInfo, candidates: Sequence[CheckpointInfo], *, run_id: str | None) -> list[str]:
    """What a user should know of the others of this run."""
    notices = []
    name = plain(info.path.name)
    doubles = [plain(other.path.name) for other in candidates if other.step == info.step and other.path != info.path]
    if doubles:
        notices.append(
            f"step {info.step} is there {len(doubles) + 1} times; {name} is taken and not {listed(doubles)}: the one "
            "saved last, of copies the one without further zeros"
        )
    silent = [other for other in candidates if other.serial is None and other.step < info.step]
    if silent and info.serial is not None and run_id is None:
        others = "" if len(silent) == 1 else f", and {len(silent) - 1} older ones likewise"
        notices.append(
            f"{plain(silent[0].path.name)} says nothing of its run ({silent[0].problem}){others}: should that have "
            f"begun after {told(info.run_id)}, the newest run is not the one picked"
        )
    later = max(candidates, key=lambda other: other.serial or 0)
    if (later.serial or 0) > (info.serial or 0) and later.step < info.step:
        notices.append(
            f"{plain(later.path.name)} was saved after {name}: the run had gone back. The higher number is taken; name "
            f"{plain(later.path.name)} by its path to go on from there"
        )
    return notices


def _nothing(
    folder: Path, refused: Sequence[Refused], ignored: Sequence[Ignored], *, wanted: _Wanted, notices: Sequence[str]
) -> str:
    """Why there is nothing to go on from, and what to do; that first, as a terminal may cut the rest."""
    where = plain(str(folder))
    if has_manifest(folder):
        return (
            f"{where} is a checkpoint itself, expected the folder that holds it. Name that one, or load it by its path."
        )
    if not refused:
        others = f" Ignored: {_told([(entry.path, entry.reason) for entry in ignored])}." if ignored else ""
        return f"{where}: no checkpoint, expected {EXPECTED}. Name another folder, or start without one.{others}"
    kind = "a healthy one" if wanted.healthy else "one"
    before = f" before step {wanted.before_step}" if wanted.before_step is not None else ""
    anyway = ", or name one of these by its path to go on from it all the same" if wanted.healthy or before else ""
    return " ".join(
        [
            f"{where}: none of its checkpoints is {kind}{before} to resume from.",
            f"Take another folder or another copy of it, start without a checkpoint{anyway}.",
            f"Refused: {_told([(entry.path, entry.reason) for entry in refused])}.",
            *(f"{notice[0].upper()}{notice[1:]}." for notice in notices),
        ]
    )


def _told(entries: Sequence[tuple[Path, str]]) -> str:
    told = [f"{plain(path.name)}: {reason}" for path, reason in entries[:MAX_NAMED]]
    more = [f"and {len(entries) - MAX_NAMED} more"] if len(entries) > MAX_NAMED else []
    return "; ".join([*told, *more])
