"""Whether the logits of the routers are in their band and not growing, by their z, which tells of their size.

Enters: evidence. Leaves: what came of the gate `router_z`. Invariant: a figure that a layer lacks is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, judge_course
from trimtab.watched import ZScale

_OF: Final[Mapping[ZScale, str]] = {"layer": "of a layer", "sum": "summed over layers", "mean": "mean over layers"}


def router_z(evidence: Evidence) -> Judged:
    """Judges the logits of the routers."""
    seen = evidence.at_end.stretch
    kinds, more = KINDS_OF_GATES["router_z"], {"z_scale": seen.z_scale}
    return judge_course(evidence, kinds, seen.z, key="z", named=f"z {_OF[seen.z_scale]}", more=more)
