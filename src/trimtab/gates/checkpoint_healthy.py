"""Whether the chunk's checkpoint is one to go on from, by what it says of itself and by what the log has against it.

Enters: the checkpoint, and the last healthy one before it. Leaves: the gate `checkpoint_healthy`. Invariant: what it
passes `trimtab ckpt pick --healthy` would take, and what it fails that would refuse; but for damage, which is
`checkpoint_whole`'s, and for one that lacks a part, is called by another step or was left aside, which is
`checkpoint_written`'s.
"""

from __future__ import annotations

from typing import Any

from trimtab.gates.looked_at import Chosen
from trimtab.gates.values import Judged
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import MANIFEST_NAME
from trimtab.text import plain


def checkpoint_healthy(chosen: Chosen, last_healthy: CheckpointInfo | None) -> Judged:
    """Whether a checkpoint is healthy; `last_healthy` is the last one before it that is."""
    info = chosen.info
    figures: dict[str, Any] = {
        "healthy": info.healthy,
        "unhealthy_because": list(info.unhealthy_because),
        "unhealthy_since": info.unhealthy_since,
    }
    if info.healthy is None:
        text = f"{chosen.name}: no {MANIFEST_NAME} that can be read says whether it is"
        return Judged("unknown", text, figures)
    if chosen.why_not is None:
        figures["last_healthy"] = str(info.path)
        return Judged("passed", "by its manifest, and the log has nothing against it", figures)
    figures["last_healthy"] = None if last_healthy is None else str(last_healthy.path)
    back = "no earlier one of this run is known to be healthy: begin anew, or from one you name"
    if last_healthy is not None:
        back = f"the last healthy one is {plain(last_healthy.path.name)}: trimtab ckpt pick --healthy"
    return Judged("failed", f"{chosen.name}: {plain(chosen.why_not)}; {back}", figures)
