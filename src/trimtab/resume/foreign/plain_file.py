"""A checkpoint in one file, as a loop of somebody's own saves it: `step_003000.pt`.

Enters: a path. Leaves: `Inspected`. Invariant: as for `torch_file`: nothing in it is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab.resume.checksum import Progress
from trimtab.resume.foreign.format import NUMBER, Format, step_in
from trimtab.resume.foreign.inspected import Inspected
from trimtab.resume.foreign.part_keys import keys_of, part_of
from trimtab.resume.foreign.pickle_walk import Mark
from trimtab.resume.foreign.safe_names import SAFE_NAMES
from trimtab.resume.foreign.torch_file import inspect_torch_file
from trimtab.resume.parts import in_order
from trimtab.text import listed, plain

MAX_NAMED: Final = 10
"""Keys told of a file that lacks a part."""

NEEDED: Final = ("model", "optimizer", "step")
"""Without these nobody can go on from such a file. Loops of people's own save no random numbers, and go on all the
same: not bit for bit, which is said."""

# One or two letters name a phase (`step_p_003000.pt`: pretraining); a word there would be a remark like "best".
_NAME: Final = re.compile(rf"step_(?:[A-Za-z]{{1,2}}_)?{NUMBER}\.(?:pt|pth)")

_Entries = Mapping[str, int | float | str | Mark]


def inspect_file(path: str | os.PathLike[str], *, reads: bool = True, progress: Progress | None = None) -> Inspected:
    """Looks at all of a file: its checksums, and what its keys say it holds.

    Args:
        path: The file.
        reads: Whether it is opened; otherwise its size is all that is looked at.
        progress: Called now and then with how many more bytes were read.
    """
    place = Path(path)
    if not reads:
        size_bytes = _size(place)
        problems = [] if size_bytes else [f"{plain(place.name)} is empty (0 bytes)"]
        return Inspected(parts=(), problems=tuple(problems), num_files=1, size_bytes=size_bytes)
    found = inspect_torch_file(place, allowed=SAFE_NAMES, progress=progress)
    name = plain(place.name)
    entries = found.pickled.entries if found.pickled is not None else None
    named = step_in(place.name, _NAME)
    held = _step(entries)
    parts = _parts(entries, is_numbered=named is not None)
    missing = tuple(part for part in NEEDED if part not in parts)
    problems = [f"{name} {problem}" for problem in found.problems]
    notes = _notes(entries, parts=parts, missing=missing) if found.pickled is not None else []
    if named is not None and held is not None and held != named:
        # A loop that counts from 0, or raises its count before it saves, is one off; a copy under another name is not.
        if abs(held - named) > 1:
            problems.append(f"{name} says step {held} inside: it was copied or renamed. Give it its name back")
        else:
            notes.append(f"it says step {held} inside, and its name {named}; the name counts")
        held = None
    return Inspected(
        parts=parts,
        missing=missing,
        problems=tuple(problems),
        needs_pickle=found.needs_pickle and len(problems) == len(found.problems),
        notes=tuple(notes),
        step=held,
        loss=_loss(entries),
        num_files=1,
        size_bytes=_size(place),
    )


def _parts(entries: _Entries | None, *, is_numbered: bool) -> tuple[str, ...]:
    if entries is None:
        return ()
    found = {part for part in map(part_of, entries) if part is not None}
    # The keys of a model alone are the names of its weights; one of them may be called `weights`.
    if found <= {"model"} and any(value is Mark.TENSOR for value in entries.values()):
        found = {"model"}
    # A number in the file's name is its step.
    return in_order(found | {"step"} if is_numbered and "model" in found else found)


def _notes(entries: _Entries | None, *, parts: tuple[str, ...], missing: tuple[str, ...]) -> list[str]:
    if entries is None:
        return ["its outermost object is no mapping: what it holds cannot be told"]
    notes = []
    if missing:
        keys = [plain(key) for key in entries]
        notes.append(f"its keys are {listed(keys, most=MAX_NAMED)}" if keys else "it has no keys")
        return notes
    if "rng" not in parts:
        notes.append("it holds no random numbers: a run that goes on from it is not bit-identical to one that went on")
    if "scheduler" not in parts:
        notes.append("it holds no scheduler: if the run had one, its schedule would begin anew")
    return notes


def _step(entries: _Entries | None) -> int | None:
    values = [entries[key] for key in keys_of("step", entries)] if entries is not None else []
    return next((value for value in values if isinstance(value, int) and value >= 0), None)


def _loss(entries: _Entries | None) -> float | None:
    values = [entries[key] for key in keys_of("loss", entries)] if entries is not None else []
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


FORMAT: Final = Format(
    saver="file",
    kind="file",
    pattern=_NAME,
    expected="a file step_<number>.pt",
    recognises=lambda path: not path.is_dir(),
    inspect=inspect_file,
)
