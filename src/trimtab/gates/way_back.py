"""Where to go back to from a chunk that is not to be built upon: said once, for all gates that failed.

Enters: what came of the gates, and what stands where the checkpoints are. Leaves: a sentence, or None. Invariant: a
checkpoint is named only where one is known to be healthy, and never the one that is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.gates.looked_at import LookedAt
from trimtab.gates.values import GateName, Judged
from trimtab.text import plain

_NO_WAY_BACK: Final[tuple[GateName, ...]] = ("finished", "learning_rate", "checkpoint_written")
"""What fails there is put right by training on, by the right rate or by a save."""


def way_back(judged: Mapping[GateName, Judged], looked_at: LookedAt) -> str | None:
    """The last healthy checkpoint before the chunk's last step, where a gate failed that leads back to one.

    None, too, where nobody knows where the checkpoints are, and where `checkpoint_healthy` tells it.
    """
    failed = {name for name, gate in judged.items() if gate.status == "failed"}
    if looked_at.folder is None or "checkpoint_healthy" in failed or failed <= set(_NO_WAY_BACK):
        return None
    if looked_at.last_healthy is None:
        return "no earlier checkpoint of this run is known to be healthy: begin anew, or go back to one you name"
    path = plain(str(looked_at.last_healthy.path))
    earlier = "where a failed gate names an earlier step, take one from before that"
    return f"the checkpoint to go back to is {path}, the last one before that is known to be healthy; {earlier}"
