"""Whether a checkpoint is what was saved, byte for byte; and, where nobody wrote down what that was, as much as shows.

Enters: a path. Leaves: a `VerifyReport`. Invariant: it says of a checkpoint what `pick` and a load find in it.
"""

from __future__ import annotations

import os
from pathlib import Path

from trimtab.resume.checksum import Progress
from trimtab.resume.examine import examine
from trimtab.resume.info import VerifyReport


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyReport:
    """Reads all of one checkpoint and says what is wrong with it.

    Args:
        path: A folder with a manifest, a checkpoint folder of the Trainer, or a file.
        progress: Called now and then with how many more bytes were read.

    Returns:
        What was found; `ok` if every promise holds.

    Raises:
        CheckpointError: There is nothing at this path.

    Example:
        report = verify("runs/step_9000")
        print(report.ok, *report.problems)
    """
    found = examine(path, needs=(), progress=progress)
    info = found.info
    return VerifyReport(
        path=Path(path),
        step=found.step,
        ok=not found.problems,
        problems=found.problems,
        needs_pickle=found.needs_pickle,
        notes=found.notes,
        promise=info.promise,
        healthy=info.healthy,
        parts=info.parts,
        missing=info.missing,
        num_files=found.num_files,
        size_bytes=info.size_bytes or 0,
    )
