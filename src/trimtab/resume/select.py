"""Which checkpoint to go on from: the newest of a run that is complete, whole and, where that is asked, healthy.

    scan -> look at each manifest -> the run -> newest first: complete? healthy? every byte? -> the first that is

Enters: a folder. Leaves: a `CheckpointInfo`, or a `CheckpointError` that says why there is none. Invariants: steps are
compared as numbers and no clock decides; the payload of a candidate is read only once all newer ones were refused, and
that of any other never.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.checksum import Progress
from trimtab.resume.doubt import short
from trimtab.resume.examine import examine
from trimtab.resume.info import CheckpointInfo, Refused
from trimtab.resume.listing import GONE, in_order_of_age, is_gone, look_at
from trimtab.resume.manifest import MANIFEST_NAME, has_manifest
from trimtab.resume.names import EXPECTED, Entries, Ignored, scan
from trimtab.resume.runs import choose_run, told
from trimtab.text import listed, plain

MAX_LOOKS: Final = 3
"""Looks at a folder in which another process saves and removes: what vanished under one is not there for the next."""

LEFT_OUT: Final = (
    f"no {MANIFEST_NAME}, and others here have one: which run it is of is not known; name it by its path to go on "
    "from it"
)
"""Why a checkpoint without a manifest is not taken where others have one."""

MAX_NAMED: Final = 10
"""Checkpoints, and other entries, that an error tells one by one."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    healthy: bool
    before_step: int | None = None
    other_than: str | None = None
    doubts: Callable[[CheckpointInfo], str | None] | None = None


def pick(
    folder: str | os.PathLike[str],
    *,
    healthy: bool = False,
    run_id: str | None = None,
    before_step: int | None = None,
    doubts: Callable[[CheckpointInfo], str | None] | None = None,
    entries: Entries | None = None,
    progress: Progress | None = None,
) -> CheckpointInfo:
    """Finds the checkpoint to go on from.

    Args:
        folder: The folder that holds the checkpoints.
        healthy: Whether to pass over those that were not healthy when they were saved, of which nobody knows, and that
            were saved while what was found later had begun.
        run_id: The run; None: the one that saved last.
        before_step: The checkpoint must be of an earlier step; None: of any.
        doubts: Says why one is not to be taken; None of one that may be.
        entries: What a scan of the folder has just found; None: it is scanned.
        progress: Called now and then with how many more bytes were read.

    Returns:
        The newest one that is complete and that is what was saved; `refused` says why each newer one is not.

    Raises:
        CheckpointError: There is none, or no such folder; says why each was refused and what to do.

    Example:
        info = pick("runs", healthy=True)
        print(info.path, info.step, *info.notices)
    """
    wanted = _Wanted(healthy, before_step, doubts=doubts)
    return _pick(Path(folder), wanted, run_id=run_id, entries=entries, progress=progress)


def instead_of(path: Path, run_id: str | None) -> CheckpointInfo | None:
    """Which checkpoint to use in the place of one that cannot be.

    Args:
        path: That one.
        run_id: Its run; None where that is not known: the run that saved last into its folder.

    Returns:
        The newest healthy one beside it; where there is none, the newest one that is whole, whose `healthy` says what
        it is; None where nothing beside it is.
    """
    for healthy in (True, False):
        with suppress(CheckpointError):
            return _pick(path.parent, _Wanted(healthy, other_than=path.name), run_id=run_id)
    return None


def _pick(
    place: Path,
    wanted: _Wanted,
    *,
    run_id: str | None,
    entries: Entries | None = None,
    progress: Progress | None = None,
) -> CheckpointInfo:
    for _ in range(MAX_LOOKS):
        listing, entries = entries or scan(place), None
        choice = choose_run([look_at(name)[0] for name in listing.found], folder=place, run_id=run_id)
        refused: list[Refused] = []
        left_out = {info.path for info in choice.left_out}
        for candidate in in_order_of_age([*choice.candidates, *choice.left_out]):
            if candidate.path in left_out:
                refused.append(Refused(candidate.path, LEFT_OUT))
                continue
            info, why = _examine(candidate, wanted, progress)
            if why is None:
                return replace(
                    info,
                    refused=tuple(refused),
                    ignored=listing.ignored,
                    num_ignored=listing.num_ignored,
                    notices=(*info.notices, *choice.notices, *_on_choice(info, choice.candidates, run_id=run_id)),
                )
            refused.append(Refused(info.path, why))
        if not any(is_gone(entry.path) for entry in refused):
            break
    raise CheckpointError(_nothing(place, refused, listing, wanted=wanted, notices=choice.notices))


def _examine(info: CheckpointInfo, wanted: _Wanted, progress: Progress | None) -> tuple[CheckpointInfo, str | None]:
    """A candidate as it is now, and why it is not taken; None if it is."""
    why = _why_not(info, wanted)
    if why is not None:
        return info, why
    try:
        found = examine(info.path, most=1, progress=progress)
    except CheckpointError:
        return info, GONE
    # Of the others of its folder, and so of what they tell of this one, nothing was read again.
    now = replace(found.info, doubt=info.doubt if found.info.healthy else None)
    # What is wrong with its files first: it is no fresh start either whose weights are not there.
    why = next(iter(found.problems), None) or _why_not(now, wanted) or found.lacks
    notes = found.notes if found.info.promise == "structure" else ()
    return replace(now, notices=tuple(f"{plain(info.path.name)}: {note}" for note in notes)), why


def why_not(
    info: CheckpointInfo,
    *,
    healthy: bool = True,
    before_step: int | None = None,
    doubts: Callable[[CheckpointInfo], str | None] | None = None,
) -> str | None:
    """Why a checkpoint is none to go on from, as far as its manifest and those beside it say; None where it is one.

    Args:
        info: The checkpoint, as a list of its folder has it.
        healthy: As of `pick`, and likewise the others.
        before_step: See there.
        doubts: See there.

    Returns:
        A phrase, in plain ASCII.
    """
    if info.problem is not None:
        return info.problem
    if healthy and info.healthy is None:
        return f"no {MANIFEST_NAME}, so that its health is not known"
    if healthy and not info.healthy:
        return f"not healthy: {short(info.unhealthy_because) or 'its manifest does not say why'}"
    if before_step is not None and info.step >= before_step:
        return f"not before step {before_step}"
    doubt = doubts(info) if doubts is not None else None
    return doubt or (info.doubt if healthy else None)


def _why_not(info: CheckpointInfo, wanted: _Wanted) -> str | None:
    if info.problem is None and info.path.name == wanted.other_than:
        return "the one that another is looked for instead of"
    return why_not(info, healthy=wanted.healthy, before_step=wanted.before_step, doubts=wanted.doubts)


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
    folder: Path, refused: Sequence[Refused], listing: Entries, *, wanted: _Wanted, notices: Sequence[str]
) -> str:
    """Why there is nothing to go on from, and what to do; that first, as a terminal may cut the rest."""
    where = plain(str(folder))
    if has_manifest(folder):
        return (
            f"{where} is a checkpoint itself, expected the folder that holds it. Name that one, or load it by its path."
        )
    if not refused:
        others = f" Ignored: {_told(listing.ignored, listing.num_ignored)}." if listing.ignored else ""
        return f"{where}: no checkpoint, expected {EXPECTED}. Name another folder, or start without one.{others}"
    kind = "a healthy one" if wanted.healthy else "one"
    before = f" before step {wanted.before_step}" if wanted.before_step is not None else ""
    anyway = ", or name one of these by its path to go on from it all the same" if wanted.healthy or before else ""
    return " ".join(
        [
            f"{where}: none of its checkpoints is {kind}{before} to resume from.",
            f"Take another folder or another copy of it, or start without a checkpoint{anyway}.",
            f"Refused: {_told(refused, len(refused))}.",
            *(f"{notice[0].upper()}{notice[1:]}." for notice in notices),
        ]
    )


def _told(entries: Sequence[Refused | Ignored], num_entries: int) -> str:
    told = [f"{plain(entry.path.name)}: {entry.reason}" for entry in entries[:MAX_NAMED]]
    more = [f"and {num_entries - MAX_NAMED:,} more"] if num_entries > MAX_NAMED else []
    return "; ".join([*told, *more])
