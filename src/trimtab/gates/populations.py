"""Whether the populations of experts share the tokens at the end of the chunk.

Enters: evidence. Leaves: the gate `populations`. Invariant: each layer is judged by itself, for two that fail in
opposite ways pool to an even share.
"""

from __future__ import annotations

import math
from typing import Any, Final

from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import GO_BACK, not_measured, shown_range
from trimtab.rules.router.figures import population_shares, usable_counts
from trimtab.text import plain

LEAST_SHARE: Final = 0.5
"""Part of an even share below which a population starves: the others have at least three quarters of the tokens of two.
Measured on a sound run, the `tiny` preset of recipes/twin_moe: the smaller of two has 0.37 to 0.5 of the tokens of a
layer from step 75 to 400, and 0.27 at the least while its rate warms up."""

CHANCE: Final = 1e-6
"""The chance that an even router shows so small a share has to be below this: 120 tokens of 2 populations are enough,
and 8 prove nothing. As `WatchConfig.dead_chance`."""


def populations(evidence: Evidence) -> Judged:
    """Judges the shares of the populations in each layer of the last report."""
    last = evidence.at_end.stretch.report
    unmeasured = not_measured(evidence)
    if unmeasured is not None:
        return unmeasured
    assert last is not None, "every report that is due is there"
    size = last.num_populations
    if size < 2:
        text = "the experts are one population"
        return Judged("inapplicable", text, {"num_populations": size})
    even = 1 / size
    shares: dict[str, tuple[float, ...]] = {}
    num_tokens: dict[str, int] = {}
    for layer in last.layers:
        counts = usable_counts(layer)
        found = population_shares(counts, num_populations=size) if counts is not None else None
        if counts is not None and found is not None:
            shares[layer.name], num_tokens[layer.name] = found, sum(counts)
    figures: dict[str, Any] = {
        "num_populations": size,
        "step": last.step,
        "least_share": LEAST_SHARE * even,
        "shares": {plain(name): list(found) for name, found in shares.items()},
    }
    starved = [name for name, found in shares.items() if min(found) < LEAST_SHARE * even]
    surely = [name for name in starved if not _may_be_chance(min(shares[name]), even, num_tokens=num_tokens[name])]
    if surely:
        worst = min(surely, key=lambda name: min(shares[name]))
        least = min(shares[worst])
        others = len(surely) - 1
        also = "" if not others else f", and likewise in {others:,} more {'layer' if others == 1 else 'layers'}"
        text = (
            f"population {shares[worst].index(least)} of {size} has {100 * least:.3g} % of the tokens of layer "
            f"{plain(worst)} at step {last.step}, less than half of its even share of {100 * even:.3g} %{also}; "
            f"{GO_BACK}"
        )
        return Judged("failed", text, figures)
    if starved:
        text = f"too few tokens in the report of step {last.step} to tell small shares from chance: report less often"
        return Judged("unknown", text, figures)
    if len(shares) < max(1, len(last.layers)):
        text = f"not every layer has counts that split into {size} populations in the report of step {last.step}"
        return Judged("unknown", text, figures)
    low = min(min(found) for found in shares.values())
    high = max(max(found) for found in shares.values())
    text = (
        f"each of {size} has {shown_range(round(100 * low, 1), round(100 * high, 1))} % of the tokens of a layer at "
        f"step {last.step} (even: {100 * even:.3g} %)"
    )
    return Judged("passed", text, figures)


def _may_be_chance(share: float, even: float, *, num_tokens: int) -> bool:
    """Whether an even router may show so small a share; Chernoff's bound, exp(-T * KL(share, even))."""
    divergence = (1 - share) * math.log((1 - share) / (1 - even))
    if share > 0:
        divergence += share * math.log(share / even)
    return num_tokens * divergence < -math.log(CHANCE)
