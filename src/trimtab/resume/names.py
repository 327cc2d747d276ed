"""Which entries of a folder are checkpoints by their name, and in which order; nothing is opened.

Enters: a folder. Leaves: what was found, newest first, and what was ignored, each with the reason. Invariant: a whole
name counts or none of it, and numbers are compared as numbers; no time of a file decides anything. A folder of a
hundred thousand other files takes as long as listing it does.
"""

from __future__ import annotations

import heapq
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trimtab.errors import CheckpointError
from trimtab.resume.foreign import FORMATS
from trimtab.resume.foreign.format import MAX_DIGITS, NUMBER, Kind, step_in
from trimtab.text import plain

OURS: Final = "trimtab"
"""The saver of checkpoints that are ours."""

STEP_NAME: Final = re.compile(rf"step_{NUMBER}")
DRAFT_NAME: Final = re.compile(r"step_[0-9]+\.tmp-[0-9a-f]{8}")

_KNOWN: Final[tuple[tuple[str, Kind, re.Pattern[str]], ...]] = (
    (OURS, "folder", STEP_NAME),
    *((known.saver, known.kind, known.pattern) for known in FORMATS),
)

_ANY: Final = re.compile("|".join(f"(?:{pattern.pattern})" for _, _, pattern in _KNOWN))
"""Any of these names: one look at each entry of a folder, before anything is made or asked for it."""

MAX_IGNORED: Final = 1_000
"""Entries of a folder that are told of as ignored; of more, those that look like a checkpoint before the others."""

_POINTERS: Final = frozenset({"latest", "last", "latest_checkpoint", "latest_checkpointed_iteration.txt", "latest.txt"})
_ALIKE: Final = re.compile(r"step|ckpt|checkpoint|\.pth?\Z|\.safetensors\Z", re.IGNORECASE)


def _any_of(*spelled: str) -> str:
    return f"{', '.join(spelled[:-1])}, or {spelled[-1]}"


EXPECTED: Final = _any_of("step_<number>", *(known.expected for known in FORMATS))
"""Names of checkpoints, as an error tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointName:
    """An entry of a folder that is a checkpoint by its name.

    Attributes:
        path: Where it is.
        step: The number in its name.
        saver: Who gives such names, and so is taken for the one who wrote it where no manifest says.
    """

    path: Path
    step: int
    saver: str


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
class Entries:
    """What stands in a folder.

    Attributes:
        found: Checkpoints by their names, the highest number first.
        ignored: Everything else, by name; `MAX_IGNORED` entries at most.
        num_ignored: How many there are in all.
    """

    found: tuple[CheckpointName, ...]
    ignored: tuple[Ignored, ...]
    num_ignored: int


def scan(folder: str | os.PathLike[str]) -> Entries:
    """Lists a folder.

    Raises:
        CheckpointError: There is no such folder, or it cannot be listed.
    """
    place = Path(folder)
    found: list[CheckpointName] = []
    others: list[os.DirEntry[str]] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                name = None
                if _ANY.fullmatch(entry.name):
                    name = checkpoint_name(place / entry.name, kind=kind_of(entry))
                if name is not None:
                    found.append(name)
                else:
                    others.append(entry)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(
            f"{plain(str(place))}: no folder that can be listed ({why}). Name the folder that holds the checkpoints, "
            f"which are called {EXPECTED}."
        ) from error
    told = others if len(others) <= MAX_IGNORED else heapq.nsmallest(MAX_IGNORED, others, key=_worth_telling)
    return Entries(
        found=tuple(sorted(found, key=newest_first)),
        ignored=tuple(
            Ignored(place / entry.name, _why_ignored(entry.name, kind_of(entry)))
            for entry in sorted(told, key=lambda entry: entry.name)
        ),
        num_ignored=len(others),
    )


def checkpoint_name(path: Path, *, kind: Literal["folder", "file", "other"]) -> CheckpointName | None:
    """What a whole name says; None where it is no checkpoint's.

    Args:
        path: Where it is; only the last part of it is looked at.
        kind: What stands there.
    """
    for saver, expected, pattern in _KNOWN:
        step = step_in(path.name, pattern) if kind == expected else None
        if step is not None:
            return CheckpointName(path=path, step=step, saver=saver)
    return None


def step_name(step: int) -> str:
    """What a checkpoint of ours is called."""
    return f"step_{step}"


def named(path: Path) -> CheckpointName | None:
    """What the name of a path says, and what stands there; None where that is no checkpoint's."""
    return checkpoint_name(path, kind="folder" if path.is_dir() else "file")


def newest_first(name: CheckpointName) -> tuple[int, int, str]:
    """Sorts names, the highest number first; of one number, spelled twice, the one without leading zeros first."""
    return -name.step, len(name.path.name), name.path.name


def kind_of(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    """What an entry of a folder is, past links; a link that leads back to itself is neither folder nor file."""
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else "other"
    except OSError:
        return "other"


def _worth_telling(entry: os.DirEntry[str]) -> tuple[bool, str]:
    """Sorts ignored entries, those first that somebody may have taken for a checkpoint."""
    is_like_one = _ALIKE.search(entry.name) is not None or entry.name.casefold() in _POINTERS
    return not is_like_one, entry.name


def _why_ignored(name: str, kind: str) -> str:
    if DRAFT_NAME.fullmatch(name):
        return "a draft: its save has not ended, or was killed"
    if name.casefold() in _POINTERS:
        return "a pointer is a hint, never the truth"
    if kind == "other":
        return "neither a file nor a folder"
    expected = next((expected for _, expected, pattern in _KNOWN if pattern.fullmatch(name)), None)
    if expected is not None:
        return (
            f"a number of more than {MAX_DIGITS} digits"
            if kind == expected
            else f"a {kind} with the name of a {expected}"
        )
    if _ALIKE.search(name):
        return f"not the whole name of a checkpoint: expected {EXPECTED}"
    return "no checkpoint"
