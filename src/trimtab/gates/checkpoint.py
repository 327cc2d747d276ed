"""The gates of the checkpoint that a chunk ends with: written, whole, healthy, round-tripped and probed.

    folder -> the checkpoint of this run after the last step -> every byte of it -> its health -> its round trip

Enters: the evidence of the log, and the folder of the checkpoints. Leaves: five gates. Invariants: nothing in a
checkpoint is run; and of one that is not there nothing has passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.analysis.trouble import found_in
from trimtab.errors import CheckpointError
from trimtab.gates.checkpoint_health import healthy
from trimtab.gates.checkpoint_written import choose, nowhere
from trimtab.gates.evidence import Evidence
from trimtab.gates.round_trip import generation_probe, round_trip
from trimtab.gates.values import Gate, GateName, GateStatus
from trimtab.resume.checksum import Progress
from trimtab.resume.examine import Examined, examine
from trimtab.resume.listing import GONE
from trimtab.text import plain

OF_WHAT_IS_THERE: Final[tuple[GateName, ...]] = (
    "checkpoint_whole",
    "checkpoint_healthy",
    "round_trip",
    "generation_probe",
)
"""Gates that need a checkpoint to look at."""

MAX_PROBLEMS: Final = 3
"""Problems of one checkpoint told in a sentence; `trimtab ckpt verify` tells all."""


def checkpoint_gates(
    evidence: Evidence, folder: Path | None, *, missing: str = "", progress: Progress | None = None
) -> tuple[str | None, tuple[Gate, ...]]:
    """Judges the checkpoint that a chunk ends with.

    Args:
        evidence: What the log says.
        folder: The folder that holds the checkpoints; None where none was found.
        missing: Why there is none, as a sentence without a full stop.
        progress: Called now and then with how many more bytes were read.

    Returns:
        Its path, None where there is none; and the gates, in the order of `GATE_NAMES`.

    Raises:
        CheckpointError: The folder cannot be listed.
    """
    choice = nowhere(evidence, missing) if folder is None else choose(evidence, folder)
    if choice.info is None:
        why = "there is no checkpoint to look at: see checkpoint_written"
        return None, (choice.written, *(Gate(name=name, status="unknown", text=why) for name in OF_WHAT_IS_THERE))
    try:
        found = examine(choice.info.path, needs=(), progress=progress)
    except CheckpointError:
        found = Examined(info=choice.info, manifest=None, problems=(GONE,))
    return str(choice.info.path), (
        choice.written,
        _whole(found),
        healthy(choice.info, found_in(evidence.runs, evidence.health), others=choice.others),
        round_trip(found, evidence),
        generation_probe(found, evidence),
    )


def _whole(found: Examined) -> Gate:
    """Whether every byte is what was saved."""
    status, text = _whole_in_words(found)
    figures = {
        "num_files": found.num_files,
        "size_bytes": found.info.size_bytes,
        "promise": found.info.promise,
        "problems": list(found.problems),
    }
    return Gate(name="checkpoint_whole", status=status, text=text, figures=figures)


def _whole_in_words(found: Examined) -> tuple[GateStatus, str]:
    name = plain(found.info.path.name)
    if found.needs_pickle:
        return "unknown", f"{name} is not damaged as far as it can be read: {found.problems[0]}"
    if found.problems:
        more = len(found.problems) - MAX_PROBLEMS
        told = [
            *found.problems[:MAX_PROBLEMS],
            *([f"and {more:,} more, told by trimtab ckpt verify"] if more > 0 else []),
        ]
        back = "save again while the training is there, or go on from an earlier one: trimtab ckpt pick --healthy"
        return "failed", f"{name}: {'; '.join(told)}; {back}"
    if found.info.promise == "structure":
        return "unknown", f"{name}: {found.notes[0]}"
    files = "1 file" if found.num_files == 1 else f"{found.num_files:,} files"
    return "passed", f"every byte is what was saved ({files}, {found.info.size_bytes or 0:,} bytes)"
