"""The one metric file in a folder, whatever its name, or those in folders below it that are numbered.

Enters: a folder, the end of its files' names, and what knows a file by its content. Leaves: the file. Invariant: of two
files none is chosen: which of them is meant is the user's to say. Of numbered folders the newest counts, which is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from trimtab.errors import LogError
from trimtab.log.foreign import read_head

MAX_FILES: Final = 100
"""Files of one kind that are looked into."""

MAX_NAMED: Final = 3


def lone_file(folder: Path, *, suffix: str, recognises: Callable[[Path, bytes], bool]) -> Path | None:
    """The only file of a kind in a folder that is a log; None where there is none.

    Args:
        folder: Any folder.
        suffix: How the names of its files end: ".csv".
        recognises: Whether a file is a log, by itself and its first bytes.

    Raises:
        LogError: There are several.
    """
    found = []
    for file in islice(sorted(folder.glob(f"*{suffix}")), MAX_FILES):
        try:
            if recognises(file, read_head(file)):
                found.append(file)
        except OSError:
            # A folder of that name, or a file of somebody else: no log that can be read.
            continue
    if len(found) > 1:
        named = ", ".join(ascii(file.name) for file in found[:MAX_NAMED]) + (", ..." if len(found) > MAX_NAMED else "")
        raise LogError(f"{folder} holds {len(found)} logs, {named}: name one of them, or several to compare them.")
    return found[0] if found else None


def numbered_files(folder: Path, *, name: re.Pattern[str], file: str) -> list[Path]:
    """Files of one name in numbered folders below a folder, that with the highest number first.

    Args:
        folder: Any folder.
        name: What the numbered folders are called; its group is the number.
        file: The file's name.
    """
    found = []
    for path in folder.glob(f"*/{file}"):
        named = name.fullmatch(path.parent.name)
        if named and path.is_file():
            found.append((int(named[1]), path))
    return [path for _, path in sorted(found, reverse=True)]


def on_numbered(files: Sequence[Path], place: int, *, folder: Path) -> list[str]:
    """What to say of the choice among numbered folders, of which those before `place` hold nothing to be read."""
    read = files[place].parent.name
    if place:
        passed = ", ".join(file.parent.name for file in files[: min(place, MAX_NAMED)]) + (
            ", ..." if place > MAX_NAMED else ""
        )
        return [f"nothing could be read from {files[0].name} of {passed}: {read} was read, the newest before"]
    several = f"{len(files)} folders like {read} are in {folder}; the newest, {read}, was read"
    return [several] if len(files) > 1 else []
