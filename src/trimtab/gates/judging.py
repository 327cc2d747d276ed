"""All gates of a chunk, in their order: from a log and a folder of checkpoints to a `GateReport`.

    open_log -> read_evidence, look_for_checkpoint -> one function a gate, by its name -> GateReport

Enters: a log, and where its checkpoints lie. Leaves: the report. Invariant: every gate is told, in the order of
`GATE_NAMES`; nothing that a log or a checkpoint names is imported or run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trimtab.gates.checkpoint import CHECKPOINT_GATES
from trimtab.gates.dead_experts import dead_experts
from trimtab.gates.eval_streak import eval_streak
from trimtab.gates.evidence import Evidence, read_evidence
from trimtab.gates.finished import finished
from trimtab.gates.learning_rate import learning_rate
from trimtab.gates.looked_at import look_for_checkpoint
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.gates.populations import populations
from trimtab.gates.router_load import router_load
from trimtab.gates.router_z import router_z
from trimtab.gates.values import GATE_NAMES, GateName, GateReport, Judged
from trimtab.gates.watch import watch
from trimtab.gates.way_back import way_back
from trimtab.log.reader import Log
from trimtab.resume.checksum import Progress
from trimtab.text import plain

LOG_GATES: Final[Mapping[GateName, Callable[[Evidence], Judged]]] = {
    "finished": finished,
    "nonfinite_steps": nonfinite_steps,
    "learning_rate": learning_rate,
    "router_z": router_z,
    "router_load": router_load,
    "dead_experts": dead_experts,
    "populations": populations,
    "eval_streak": eval_streak,
    "watch": watch,
}
"""The gates that the log alone decides; a new one is its name in `GateName`, its file and a line here."""


def judge_chunk(
    source: Log | str | os.PathLike[str],
    *,
    checkpoints: Path | None,
    looked_in: Path | None = None,
    since: int | None = None,
    progress: Progress | None = None,
) -> GateReport:
    """Judges whether the chunk that a run ended with may be built upon.

    Args:
        source: The log of the run, opened or its path; of several runs in it the last is judged.
        checkpoints: The folder that holds its checkpoints; None where none was found.
        looked_in: The folder in which they were looked for, and in those in it; None: they were not.
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
    looked_at = look_for_checkpoint(evidence, checkpoints, looked_in=looked_in, progress=progress)
    judged = {name: gate(evidence) for name, gate in LOG_GATES.items()}
    judged |= {name: gate(evidence, looked_at) for name, gate in CHECKPOINT_GATES.items()}
    back = way_back(judged, looked_at)
    return GateReport(
        run_id=evidence.run_id,
        source=evidence.log.path,
        chunk=evidence.chunk,
        gates=tuple(judged[name].named(name) for name in GATE_NAMES),
        checkpoint=None if looked_at.chosen is None else str(looked_at.chosen.info.path),
        notices=(*([] if back is None else [back]), *map(plain, (*_on_runs(evidence), *evidence.log.notices()))),
    )


def _on_runs(evidence: Evidence) -> list[str]:
    """That only one of several runs in a log is judged."""
    if len(evidence.runs) == 1:
        return []
    return [f"{len(evidence.runs)} runs are in this log: the last one is judged"]
