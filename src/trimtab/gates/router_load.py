"""Whether the tokens stay spread over the experts: no collapse, no load balance that rises, counts that add up.

Enters: evidence. Leaves: what came of the gate `router_load`. Invariants: the last report is held against the bounds of
its watch whether or not that said anything of it; a figure that a layer lacks is not guessed.
"""

from __future__ import annotations

import math

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import KINDS_OF_GATES, judge_course
from trimtab.rules.router.condition import BUSIEST, CROWDING_CHANCE, TAKES_ALL, condition_of
from trimtab.rules.router.figures import busiest_share, crowding_by_chance, finite, known_top_k, usable_counts
from trimtab.rules.router.z_course import chooses
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain
from trimtab.watched import LayerFigures


def router_load(evidence: Evidence) -> Judged:
    """Judges how the tokens are spread over the experts."""
    report, config = evidence.at_end.stretch.report, evidence.settings
    told = [found for layer in (report.layers if report is not None else ()) if (found := _problem(layer, config))]
    others = len(told) - 1
    more = f"; {others:,} more {'layer is' if others == 1 else 'layers are'} out of bounds" if others > 0 else ""
    return judge_course(
        evidence,
        KINDS_OF_GATES["router_load"],
        evidence.at_end.stretch.load_balance,
        key="load_balance",
        named="load balance of a layer",
        beside=" (even: 1)",
        problem=f"{told[0]}{more}" if told else "",
    )


def _problem(layer: LayerFigures, config: WatchConfig) -> str | None:
    """What of a layer's load is out of bounds; None where nothing is."""
    name, counts, balance = plain(layer.name), usable_counts(layer), finite(layer.load_balance)
    if counts is not None:
        busiest = _takes_all(counts, top_k=known_top_k(layer))
        if busiest is not None:
            return f"expert {busiest} gets all tokens of layer {name} (even: {known_top_k(layer) / len(counts):.0%})"
        condition = condition_of(layer, config)
        if condition.crowded:
            load = f"load entropy {condition.load or 0.0:.0%} of what is possible"
            return f"few experts get nearly all tokens of layer {name} ({load})"
    if balance is not None and balance > config.load_balance_high and chooses(layer):
        return f"load balance of layer {name} is {balance:.4g}, above {config.load_balance_high:g}"
    return None


def _takes_all(counts: tuple[int, ...], *, top_k: int) -> int | None:
    """The expert that is among the choices of all tokens; None where there is none, or chance may show one.

    MaxVio is then the largest that there is, and that expert no choice, however the others spread. On 12 sound runs of
    the `tiny` preset of recipes/twin_moe the busiest of 8 (even: 0.25) has 0.82 of the tokens at most while the rate
    warms up, and 0.3 to 0.5 behind step 150.
    """
    even, share = top_k / len(counts), busiest_share(counts, top_k=top_k) or 0.0
    chance = crowding_by_chance(sum(counts) // top_k, num_experts=len(counts), top_k=top_k, share=share)
    is_all = share >= TAKES_ALL and even <= BUSIEST and chance < math.log(CROWDING_CHANCE)
    return counts.index(max(counts)) if is_all else None
