"""The one metric file in a folder, whatever its name.

Enters: a folder, the end of its files' names, and what knows a file by its content. Leaves: the file. Invariant: of two
files none is chosen: which of them is meant is the user's to say.
"""

from __future__ import annotations

from collections.abc import Callable
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
