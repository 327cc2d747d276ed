"""Which entries of a folder are checkpoints by their name, and in which order; nothing is opened.

Enters: a folder. Leaves: what was found, newest first, and what was ignored, each with the reason. Invariant: a whole
name counts or none of it, and numbers are compared as numbers; no time of a file decides anything.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trimtab.errors import CheckpointError
from trimtab.text import plain

Form = Literal["folder", "hf", "file"]
"""`step_<number>` of ours, `checkpoint-<number>` of the Trainer, `step_<number>.pt` of somebody's own loop."""

MAX_DIGITS: Final = 18
"""No run counts further than 2**53 steps; a longer number is somebody's date, or somebody's joke."""

EXPECTED: Final = "step_<number>, checkpoint-<number>, or a file step_<number>.pt"

_NUMBER: Final = "([0-9]+)"
_NAMES: Final[dict[Form, tuple[str, re.Pattern[str]]]] = {
    "folder": ("folder", re.compile(rf"step_{_NUMBER}\Z")),
    "hf": ("folder", re.compile(rf"checkpoint-{_NUMBER}\Z")),
    # One or two letters name a phase (`step_p_003000.pt`: pretraining); a word there would be a remark like "best".
    "file": ("file", re.compile(rf"step_(?:[A-Za-z]{{1,2}}_)?{_NUMBER}\.(?:pt|pth)\Z")),
}
_DRAFT: Final = re.compile(r"step_[0-9]+\.tmp-[0-9a-f]+\Z")
_POINTERS: Final = frozenset({"latest", "last", "latest_checkpoint", "latest_checkpointed_iteration.txt", "latest.txt"})
_ALIKE: Final = re.compile(r"step|ckpt|checkpoint|\.pth?\Z|\.safetensors\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointName:
    """An entry of a folder that is a checkpoint by its name.

    Attributes:
        path: Where it is.
        step: The number in its name.
        form: Whose name it is.
    """

    path: Path
    step: int
    form: Form


@dataclass(frozen=True, slots=True)
class Ignored:
    """An entry of a folder that is never picked, and never removed.

    Attributes:
        path: Where it is.
        reason: Why, as a phrase.
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What stands in a folder.

    Attributes:
        found: Checkpoints by their names, the highest number first.
        ignored: Everything else, by name.
    """

    found: tuple[CheckpointName, ...]
    ignored: tuple[Ignored, ...]


def scan(folder: str | os.PathLike[str]) -> Listing:
    """Lists a folder.

    Raises:
        CheckpointError: There is no such folder, or it cannot be listed.
    """
    place = Path(folder)
    found: list[CheckpointName] = []
    ignored: list[Ignored] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                kind = _kind(entry)
                name = checkpoint_name(place / entry.name, kind=kind)
                if name is not None:
                    found.append(name)
                else:
                    ignored.append(Ignored(place / entry.name, _why_ignored(entry.name, kind)))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(
            f"{plain(str(place))}: no folder that can be listed ({why}). Name the folder that holds the checkpoints, "
            f"which are called {EXPECTED}."
        ) from error
    return Listing(tuple(sorted(found, key=newest_first)), tuple(sorted(ignored, key=lambda entry: entry.path.name)))


def checkpoint_name(path: Path, *, kind: Literal["folder", "file", "other"]) -> CheckpointName | None:
    """What a whole name says; None where it is no checkpoint's.

    Args:
        path: Where it is; only the last part of it is looked at.
        kind: What stands there.
    """
    for form, (expected, pattern) in _NAMES.items():
        match = pattern.match(path.name) if kind == expected else None
        if match is not None and len(match[1]) <= MAX_DIGITS:
            return CheckpointName(path=path, step=int(match[1]), form=form)
    return None


def newest_first(name: CheckpointName) -> tuple[int, int, str]:
    """Sorts names, the highest number first; of one number, spelled twice, the one without leading zeros first."""
    return -name.step, len(name.path.name), name.path.name


def _kind(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else "other"
    except OSError:  # a link that leads back to itself
        return "other"


def _why_ignored(name: str, kind: str) -> str:
    if _DRAFT.match(name):
        return "a draft: its save has not ended, or was killed"
    if name.casefold() in _POINTERS:
        return "a pointer is a hint, never the truth"
    if kind == "other":
        return "neither a file nor a folder"
    expected = next((expected for expected, pattern in _NAMES.values() if pattern.match(name)), None)
    if expected is not None:
        return (
            f"a number of more than {MAX_DIGITS} digits"
            if kind == expected
            else f"a {kind} with the name of a {expected}"
        )
    if _ALIKE.search(name):
        return f"not the whole name of a checkpoint: expected {EXPECTED}"
    return "no checkpoint"
