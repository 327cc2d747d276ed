"""The gates of the checkpoint that a chunk ends with: written, whole, healthy, round-tripped and probed.

Enters: the evidence of the log, and what was found where the checkpoints are. Leaves: `CHECKPOINT_GATES`, a function
each. Invariant: of one that is not there nothing has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trimtab.gates.checkpoint_healthy import checkpoint_healthy
from trimtab.gates.checkpoint_whole import checkpoint_whole
from trimtab.gates.checkpoint_written import checkpoint_written
from trimtab.gates.evidence import Evidence
from trimtab.gates.looked_at import Chosen, LookedAt
from trimtab.gates.round_trip import generation_probe, round_trip
from trimtab.gates.values import GateName, Judged

CheckpointGate = Callable[[Evidence, LookedAt], Judged]

NOT_THERE: Final = Judged("unknown", "there is no checkpoint to look at: see checkpoint_written")


def _of_chosen(gate: Callable[[Chosen], Judged]) -> CheckpointGate:
    """A gate that needs a checkpoint to look at."""
    return lambda _, looked_at: NOT_THERE if looked_at.chosen is None else gate(looked_at.chosen)


def _healthy(_: Evidence, looked_at: LookedAt) -> Judged:
    return NOT_THERE if looked_at.chosen is None else checkpoint_healthy(looked_at.chosen, looked_at.last_healthy)


CHECKPOINT_GATES: Final[Mapping[GateName, CheckpointGate]] = {
    "checkpoint_written": checkpoint_written,
    "checkpoint_whole": _of_chosen(checkpoint_whole),
    "checkpoint_healthy": _healthy,
    "round_trip": _of_chosen(round_trip),
    "generation_probe": _of_chosen(generation_probe),
}
"""By name; a new one is its name in `GateName`, its file and a line here."""
