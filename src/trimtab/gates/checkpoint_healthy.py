"""Whether the chunk's checkpoint is one to go on from, by what it says of itself and by what the log has against it.

Enters: the checkpoint and those beside it, and what the log has against those of its run. Leaves: the gate
`checkpoint_healthy`. Invariant: what it passes `trimtab ckpt pick --healthy` would take, and what it fails that would
refuse; but for damage, which is `checkpoint_whole`'s, and for one that lacks a part, is called by another step or was
left aside, which is `checkpoint_written`'s.
"""

from __future__ import annotations

from typing import Any

from trimtab.analysis.trouble import Found
from trimtab.gates.looked_at import Chosen
from trimtab.gates.pick_healthy import against
from trimtab.gates.values import Judged
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import MANIFEST_NAME
from trimtab.resume.select import why_not
from trimtab.text import plain


def checkpoint_healthy(chosen: Chosen) -> Judged:
    """Whether a checkpoint is healthy."""
    info, found = chosen.info, chosen.log_has
    figures: dict[str, Any] = {
        "healthy": info.healthy,
        "unhealthy_because": list(info.unhealthy_because),
        "unhealthy_since": info.unhealthy_since,
    }
    if info.healthy is None:
        text = f"{chosen.name}: no {MANIFEST_NAME} that can be read says whether it is"
        return Judged("unknown", text, figures)
    why = _why_not(info, found)
    if why is None:
        figures["last_healthy"] = str(info.path)
        return Judged("passed", "by its manifest, and the log has nothing against it", figures)
    last = next((other for other in chosen.beside if other.step < info.step and _is_sound(other, info, found)), None)
    figures["last_healthy"] = None if last is None else str(last.path)
    back = "no earlier one of this run is known to be healthy"
    if last is not None:
        back = f"the last healthy one is {plain(last.path.name)}: trimtab ckpt pick --healthy"
    return Judged("failed", f"{chosen.name}: {plain(why)}; {back}", figures)


def _is_sound(other: CheckpointInfo, info: CheckpointInfo, found: Found) -> bool:
    is_resumable = not other.missing and not other.abandoned and other.run_id == info.run_id
    return is_resumable and _why_not(other, found) is None


def _why_not(info: CheckpointInfo, found: Found) -> str | None:
    return why_not(info, doubts=lambda one: against(found, one.step))
