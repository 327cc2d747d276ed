"""What is known of a checkpoint that no manifest of ours describes.

Enters: nothing. Leaves: `Inspected`, a plain value. Invariant: every sentence in it is plain ASCII, whatever the files
are called and whatever stands in them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What the files of somebody else's checkpoint show.

    Attributes:
        parts: Parts that are there, by name (`trimtab.resume.parts`).
        missing: Parts that a run needs to go on, and that are not there; none of them is a problem of a file.
        problems: What is wrong with the files, a sentence each that begins with the file's name; none where they are
            as sound as can be told.
        needs_pickle: Whether all of `problems` are that nothing but pickle would load a file: no damage was found.
        notes: What a reader should know, a clause each: what could not be checked, for one.
        step: The step that the files themselves name; None where they name none.
        loss: The loss that they name; None likewise.
        num_files: Files that were looked at.
        size_bytes: Bytes of those.
    """

    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    needs_pickle: bool = False
    notes: tuple[str, ...] = ()
    step: int | None = None
    loss: float | None = None
    num_files: int = 0
    size_bytes: int = 0
