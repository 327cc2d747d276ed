"""Whether the logits of the routers are in their band and not growing, by their z, which tells of their size.

Enters: evidence. Leaves: what came of the gate `router_z`. Invariants: the trend is judged by the findings of a watch,
where z is now by the last report, for a watch warns of a z above its band only while it rises; a figure that a layer
lacks is not guessed, and a z whose factor is not known is held against no band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trimtab.analysis.watched_stretch import WatchedStretch
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, judge_course
from trimtab.rules.router.condition import condition_of
from trimtab.rules.router.z_course import chooses, hidden_factor, is_known
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain
from trimtab.watched import LayerFigures, RouterReport, ZScale

_OF: Final[Mapping[ZScale, str]] = {"layer": "of a layer", "sum": "summed over layers", "mean": "mean over layers"}


class _Held(NamedTuple):
    """A z of the last report, as it is held against a band.

    Attributes:
        of: What it is of, in words.
        scale: Likewise.
        z: It, without a factor.
        low: Where its band begins.
        high: Where its band ends.
        works: Whether each layer that it is of is known to choose, and to be balanced.
    """

    of: str
    scale: ZScale
    z: float
    low: float
    high: float
    works: bool

    @property
    def is_outside(self) -> bool:
        """Whether it has left its band. A z-loss may hold a z below it over a router that works."""
        return self.z > self.high or (self.z < self.low and not self.works)


def router_z(evidence: Evidence) -> Judged:
    """Judges the logits of the routers."""
    seen, config = evidence.at_end.stretch, evidence.settings
    held = [] if seen.report is None else _held(seen.report, config)
    outside = [one for one in held if one.is_outside]
    band = [held[0].low, held[0].high] if held else None
    return judge_course(
        evidence,
        KINDS_OF_GATES["router_z"],
        seen.z,
        key="z",
        named=f"z {_OF[seen.z_scale]}",
        ending=_told(held, seen),
        problem=_in_words(outside) if outside else "",
        more={"z_scale": seen.z_scale, "band": band, "band_of": held[0].scale if held else None},
    )


def _held(report: RouterReport, config: WatchConfig) -> list[_Held]:
    """Each z that the settings ask for, or the other one where there is none; none whose factor is not known."""
    layers = [layer for layer in report.layers if chooses(layer)]
    if not is_known(report.z_factor) or any(hidden_factor(layer, report) for layer in layers):
        return []
    known = [(layer, layer.z / report.z_factor) for layer in layers if layer.z is not None and math.isfinite(layer.z)]
    of_layer, of_sum = (config.z_layer_low, config.z_layer_high), (config.z_sum_low, config.z_sum_high)
    all_work = bool(layers) and all(_works(layer, config) for layer in layers)
    if known and config.z_band_of == "layer":
        return [
            _Held(f"of layer {plain(layer.name)}", "layer", z, *of_layer, _works(layer, config)) for layer, z in known
        ]
    if known:
        total = math.fsum(z for _, z in known)
        return [_Held(_OF["sum"], "sum", total, *of_sum, all_work)] if len(known) == len(layers) else []
    if report.z is None or not math.isfinite(report.z):
        return []
    band = of_sum if report.z_scale == "sum" else of_layer
    return [_Held(_OF[report.z_scale], report.z_scale, report.z / report.z_factor, *band, all_work)]


def _works(layer: LayerFigures, config: WatchConfig) -> bool:
    condition = condition_of(layer, config)
    return condition.crowded is False and condition.confidence in ("between", "one_hot")


def _in_words(outside: Sequence[_Held]) -> str:
    """Which z has left its band, the one that is furthest out first."""
    worst = max(outside, key=lambda one: one.z / one.high if one.z > one.high else one.low / max(one.z, 1e-12))
    side = "above" if worst.z > worst.high else "below"
    others = len(outside) - 1
    also = "" if not others else f", and of {others:,} more {'layer' if others == 1 else 'layers'} likewise"
    return f"router z {worst.of} is {worst.z:.4g}, {side} its band of {worst.low:g} to {worst.high:g}{also}"


def _told(held: Sequence[_Held], seen: WatchedStretch) -> str:
    """The band, and what is to be said of a z that was outside of it, or is below it for a good reason."""
    if not held:
        return ""
    low, high, scale = held[0].low, held[0].high, held[0].scale
    if scale != seen.z_scale:
        return f"; {_OF[scale]} {held[0].z:.4g} (band {low:g} to {high:g})"
    text = f" (band {low:g} to {high:g})"
    if any(one.is_outside for one in held) or low <= seen.z.whole.low <= seen.z.whole.high <= high:
        return text
    is_back = all(low <= one.z <= high for one in held)
    return f"{text}; {'it was outside and is back' if is_back else 'below it over routers that choose, balanced'}"
