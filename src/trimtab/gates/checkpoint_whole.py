"""Whether every byte of the chunk's checkpoint is what was saved.

Enters: the checkpoint, of which every byte was read. Leaves: the gate `checkpoint_whole`. Invariant: where nobody wrote
down what the bytes should be it has not passed.
"""

from __future__ import annotations

from typing import Final

from trimtab.analysis.remarks import count
from trimtab.gates.looked_at import Chosen
from trimtab.gates.values import GateStatus, Judged
from trimtab.text import plain

MAX_PROBLEMS: Final = 3
"""Problems of one checkpoint told in a sentence; `trimtab ckpt verify` tells all."""


def checkpoint_whole(chosen: Chosen) -> Judged:
    """Whether every byte is what was saved."""
    status, text = _in_words(chosen)
    figures = {
        "num_files": chosen.found.num_files,
        "size_bytes": chosen.found.info.size_bytes,
        "promise": chosen.found.info.promise,
        "problems": list(chosen.found.problems),
    }
    return Judged(status, plain(text), figures)


def _in_words(chosen: Chosen) -> tuple[GateStatus, str]:
    name, found = chosen.name, chosen.found
    if found.needs_pickle:
        return "unknown", f"{name} is not damaged as far as it can be read: {found.problems[0]}"
    if found.problems:
        more = len(found.problems) - MAX_PROBLEMS
        told = [
            *found.problems[:MAX_PROBLEMS],
            *([f"and {more:,} more, told by trimtab ckpt verify"] if more > 0 else []),
        ]
        back = "save again while the training is there, and do not go on from this one"
        return "failed", f"{name}: {'; '.join(told)}; {back}"
    if found.info.promise == "structure":
        return "unknown", f"{name}: {found.notes[0]}"
    size_bytes = found.info.size_bytes or 0
    return "passed", f"every byte is what was saved ({count(found.num_files, 'file')}, {size_bytes:,} bytes)"
