"""A checkpoint in one file, as a loop of somebody's own saves it: `step_003000.pt`.

Enters: a path. Leaves: `Inspected`. Invariant: as for `torch_file`: nothing in it is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab.resume.foreign.inspected import Inspected, Progress
from trimtab.resume.foreign.part_keys import keys_of, part_of
from trimtab.resume.foreign.pickle_walk import Mark
from trimtab.resume.foreign.safe_names import SAFE_NAMES
from trimtab.resume.foreign.torch_file import inspect_torch_file
from trimtab.resume.names import checkpoint_name
from trimtab.resume.parts import ALWAYS, in_order
from trimtab.text import plain

MAX_NAMED: Final = 10
"""Keys told of a file that lacks a part."""

_Entries = Mapping[str, int | float | str | Mark]


def inspect_file(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Inspected:
    """Looks at all of a file: its checksums, and what its keys say it holds.

    Args:
        path: The file.
        progress: Called now and then with how many more bytes were read.
    """
    place = Path(path)
    found = inspect_torch_file(place, allowed=SAFE_NAMES, progress=progress)
    name = plain(place.name)
    entries = found.pickled.entries if found.pickled is not None else None
    named = checkpoint_name(place, kind="file")
    held = _step(entries)
    parts = _parts(entries, is_numbered=named is not None)
    missing = tuple(part for part in ALWAYS if part not in parts)
    problems = [f"{name} {problem}" for problem in found.problems]
    notes = _notes(entries, parts=parts, missing=missing) if found.pickled is not None else []
    if named is not None and held is not None and held != named.step:
        # A loop that counts from 0, or raises its count before it saves, is one off; a copy under another name is not.
        if abs(held - named.step) > 1:
            problems.append(f"{name} says step {held} inside: it was copied or renamed. Give it its name back")
        else:
            notes.append(f"it says step {held} inside, and its name {named.step}; the name counts")
        held = None
    return Inspected(
        parts=parts,
        missing=missing,
        problems=tuple(problems),
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
        more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
        notes.append(f"its keys are {', '.join(keys[:MAX_NAMED])}{more}" if keys else "it has no keys")
    if "scheduler" not in parts and "optimizer" in parts:
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
