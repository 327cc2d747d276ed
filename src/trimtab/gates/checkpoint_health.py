"""Whether the chunk's checkpoint is one to go on from, by what it says of itself and by what the log has against it.

Enters: a checkpoint as its folder shows it, and what the log has against those of its run. Leaves: the gate
`checkpoint_healthy`. Invariant: it passes what `trimtab ckpt pick --healthy` would take, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.analysis.trouble import Found
from trimtab.gates.healthy_checkpoint import finding_against
from trimtab.gates.values import Gate
from trimtab.resume.doubt import short
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import MANIFEST_NAME
from trimtab.text import plain


def healthy(info: CheckpointInfo, found: Found, *, others: Sequence[CheckpointInfo] = ()) -> Gate:
    """Whether a checkpoint is healthy.

    Args:
        info: The checkpoint, with the doubts that others of its folder cast on it.
        found: What the log has against the checkpoints of its run.
        others: All of its folder, to name the last healthy one.
    """
    name = plain(info.path.name)
    figures: dict[str, Any] = {
        "healthy": info.healthy,
        "unhealthy_because": list(info.unhealthy_because),
        "unhealthy_since": info.unhealthy_since,
    }
    if info.healthy is None:
        text = f"{name}: no {MANIFEST_NAME} that can be read says whether it is"
        return Gate(name="checkpoint_healthy", status="unknown", text=text, figures=figures)
    why = _why_not(info, found)
    figures["last_healthy"] = None if why is not None else str(info.path)
    if why is None:
        text = "by its manifest, and the log has nothing against it"
        return Gate(name="checkpoint_healthy", status="passed", text=text, figures=figures)
    last = next((other for other in others if other.step < info.step and _is_sound(other, info, found)), None)
    figures["last_healthy"] = None if last is None else str(last.path)
    back = "no earlier one of this run is known to be healthy"
    if last is not None:
        back = f"the last healthy one is {plain(last.path.name)}: trimtab ckpt pick --healthy"
    return Gate(name="checkpoint_healthy", status="failed", text=f"{name}: {why}; {back}", figures=figures)


def _is_sound(other: CheckpointInfo, info: CheckpointInfo, found: Found) -> bool:
    is_whole = other.problem is None and not other.missing and not other.abandoned
    return is_whole and other.run_id == info.run_id and _why_not(other, found) is None


def _why_not(info: CheckpointInfo, found: Found) -> str | None:
    """What speaks against a checkpoint, as a phrase; None where nothing does."""
    if not info.healthy:
        return f"not healthy: {plain(short(info.unhealthy_because)) or 'its manifest does not say why'}"
    trouble = found.trouble
    if trouble is not None and info.step >= trouble.step:
        return f"the trouble began at step {trouble.step}, says the log: {plain('; '.join(trouble.evidence))}"
    return finding_against(found, info.step) or info.doubt
