"""All gates of a chunk, in their order: from a log and a folder of checkpoints to a `GateReport`.

    open_log -> read_evidence -> one function a gate -> GateReport

Enters: a log, and where its checkpoints lie. Leaves: the report. Invariant: every gate is told, in the order of
`GATE_NAMES`; nothing that a log or a checkpoint names is imported or run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trimtab.gates.checkpoint import checkpoint_gates
from trimtab.gates.eval_streak import eval_streak
from trimtab.gates.evidence import Evidence, read_evidence
from trimtab.gates.finished import finished
from trimtab.gates.learning_rate import learning_rate
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.gates.populations import populations
from trimtab.gates.routers import dead_experts, router_load, router_z
from trimtab.gates.values import GATE_NAMES, Gate, GateReport
from trimtab.gates.watch import watch
from trimtab.log.reader import Log
from trimtab.resume.checksum import Progress
from trimtab.text import plain

LOG_GATES: Final[tuple[Callable[[Evidence], Gate], ...]] = (
    finished,
    nonfinite_steps,
    learning_rate,
    router_z,
    router_load,
    dead_experts,
    populations,
    eval_streak,
    watch,
)
"""The gates that the log alone decides; a new one is its name in `GATE_NAMES`, its file and an entry here."""


def judge_chunk(
    source: Log | str | os.PathLike[str],
    *,
    checkpoints: Path | None,
    missing: str = "",
    since: int | None = None,
    progress: Progress | None = None,
) -> GateReport:
    """Judges whether the chunk that a run ended with may be built upon.

    Args:
        source: The log of the run, opened or its path; of several runs in it the last is judged.
        checkpoints: The folder that holds its checkpoints; None where none was found.
        missing: Why there is none, as a sentence without a full stop.
        since: The chunk begins with the step after this one; None: with the first step since the run last stopped in
            good order, so that an interrupted chunk that was resumed is judged as one.
        progress: Called now and then with how many more bytes were read, of the log and then of the checkpoint.

    Returns:
        What came of each gate.

    Raises:
        LogError: The log cannot be read, or it holds no training step, or none after `since`.
        CheckpointError: The folder of the checkpoints cannot be listed.
        UsageError: `since` is no step.
    """
    evidence = read_evidence(source, since=since, progress=progress)
    checkpoint, of_checkpoint = checkpoint_gates(evidence, checkpoints, missing=missing, progress=progress)
    gates = (*(gate(evidence) for gate in LOG_GATES), *of_checkpoint)
    assert tuple(gate.name for gate in gates) == GATE_NAMES, "each gate once, in their order"
    return GateReport(
        run_id=evidence.run_id,
        source=evidence.log.path,
        chunk=evidence.chunk,
        gates=gates,
        checkpoint=checkpoint,
        notices=tuple(map(plain, (*_on_runs(evidence), *evidence.log.notices()))),
    )


def _on_runs(evidence: Evidence) -> list[str]:
    """That only one of several runs in a log is judged."""
    if len(evidence.runs) == 1:
        return []
    return [f"{len(evidence.runs)} runs are in this log: the last one is judged"]
