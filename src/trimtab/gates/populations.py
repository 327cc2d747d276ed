"""Whether the populations of experts share the tokens at the end of the chunk.

Enters: evidence. Leaves: the gate `populations`. Invariants: each layer is judged by itself, for two that fail in
opposite ways pool to an even share; what a layer shows once may pass, what it shows again and again does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trimtab.analysis.watched_stretch import NUM_RECENT
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.gates.watched_chunk import not_measured, shown_range
from trimtab.rules.router.figures import population_shares, usable_counts
from trimtab.text import listed, plain
from trimtab.watched import LayerFigures, RouterReport

# Measured on the `tiny` preset of recipes/twin_moe: two populations, a report every 25 steps, seeds 0 to 4. The smaller
# one of a layer has 0.22 to 0.44 of its tokens in the reports of the first 100 steps, below 0.25 in one of twenty and
# in no two in a row, and 0.32 to 0.49 behind them; of all layers together 0.36 to 0.5. A population whose router was
# broken in that model has 0.035, then nothing, of a layer, and 0.22 of all layers. So a single report of a layer is no
# trend: a router may find its balance by itself, and is given as many reports as the watch gives a young one elsewhere.
LEAST_SHARE: Final = 0.5
"""Part of an even share below which a population is small: of a layer in `NUM_RECENT` reports in a row, or of all
layers together in the last one."""

STARVED_SHARE: Final = 0.125
"""Part of an even share below which a population of a layer starves, in the last report alone; below twice that it does
in the last two, of which the runs above had nothing near."""

CHANCE: Final = 1e-6
"""The chance that an even router shows so small a share has to be below this: 120 tokens of 2 populations are enough,
and 8 prove nothing. As `WatchConfig.dead_chance`."""


class _Smallest(NamedTuple):
    """The smallest population of a layer, or of all layers together.

    Attributes:
        population: Which.
        share: Its part of the tokens.
        is_small: Whether that is below `LEAST_SHARE` of an even one.
        may_be_chance: Whether an even router may show so small a share.
    """

    population: int
    share: float
    is_small: bool
    may_be_chance: bool


def populations(evidence: Evidence) -> Judged:
    """Judges the shares of the populations in each layer, and in all of them together."""
    seen = evidence.at_end.stretch
    unmeasured = not_measured(evidence)
    if unmeasured is not None:
        return unmeasured
    last = seen.report
    assert last is not None, "every report that is due is there"
    size = last.num_populations
    if size < 2:
        text = "the experts are one population"
        return Judged("inapplicable", text, {"num_populations": size})
    shares = _shares(last)
    figures: dict[str, Any] = {
        "num_populations": size,
        "step": last.step,
        "least_share": LEAST_SHARE / size,
        "shares": {plain(name): list(found) for name, found in shares.items()},
    }
    reports = [_by_layer(report) for report in seen.recent if report.num_populations == size]
    problem = _problem(last, reports)
    if problem is not None:
        text = f"{problem}; train a short chunk on and gate again, or go back: {evidence.rewind()} tells more"
        return Judged("failed", text, figures)
    small = {name: one for name, one in reports[-1].items() if one.is_small}
    if any(one.may_be_chance for one in small.values()):
        text = f"too few tokens in the report of step {last.step} to tell small shares from chance: report less often"
        return Judged("unknown", text, figures)
    if len(shares) < max(1, len(last.layers)):
        text = f"not every layer has counts that split into {size} populations in the report of step {last.step}"
        return Judged("unknown", text, figures)
    low = min(min(found) for found in shares.values())
    high = max(max(found) for found in shares.values())
    text = (
        f"each of {size} has {shown_range(round(100 * low, 1), round(100 * high, 1))} % of the tokens of a layer at "
        f"step {last.step} (even: {100 / size:.3g} %)"
    )
    if small:
        named = listed(map(plain, small), most=3)
        text += f"; less than half of an even share in {named}, which fails if {NUM_RECENT} reports in a row show it"
    return Judged("passed", text, figures)


def _problem(last: RouterReport, reports: Sequence[Mapping[str, _Smallest]]) -> str | None:
    """Which population has too few tokens, and where; None where none has.

    Args:
        last: The last report.
        reports: What it and those before it show by layer, oldest first.
    """
    size, now = last.num_populations, reports[-1]
    even, at = f"its even share of {100 / size:.3g} %", f"at step {last.step}"
    surely = {name: one for name, one in now.items() if one.is_small and not one.may_be_chance}
    starved = {name: one for name, one in surely.items() if one.share * size < STARVED_SHARE}
    if starved:
        return f"{_told(starved, size)} {at}, less than an eighth of {even}"
    whole = _whole(last)
    if whole is not None and whole.is_small and not whole.may_be_chance:
        of = f"population {whole.population} of {size} has {100 * whole.share:.3g} % of the tokens of all layers"
        return f"{of} {at}, less than half of {even}"
    starving = {
        name: one
        for name, one in surely.items()
        if len(reports) > 1 and name in reports[-2]
        if max(one.share, reports[-2][name].share) * size < 2 * STARVED_SHARE
    }
    if starving:
        return f"{_told(starving, size)} {at}, less than a quarter of {even}, as in the report before"
    if len(reports) < NUM_RECENT:
        return None
    lasting = {
        name: one for name, one in surely.items() if all(name in seen and seen[name].is_small for seen in reports)
    }
    if lasting:
        return f"{_told(lasting, size)} {at}, less than half of {even}, as in the {NUM_RECENT - 1} reports before"
    return None


def _told(found: Mapping[str, _Smallest], size: int) -> str:
    """The layer with the smallest share, and how many more there are."""
    name, least = min(found.items(), key=lambda item: item[1].share)
    others = len(found) - 1
    also = "" if not others else f" and likewise in {others:,} more {'layer' if others == 1 else 'layers'}"
    share = f"{100 * least.share:.3g} % of the tokens of layer {plain(name)}"
    return f"population {least.population} of {size} has {share}{also}"


def _shares(report: RouterReport) -> dict[str, tuple[float, ...]]:
    """(P,) shares by layer, of those whose counts split into populations."""
    found = {layer.name: _shares_of(layer, report.num_populations) for layer in report.layers}
    return {name: shares for name, shares in found.items() if shares is not None}


def _shares_of(layer: LayerFigures, size: int) -> tuple[float, ...] | None:
    counts = usable_counts(layer)
    return None if counts is None else population_shares(counts, num_populations=size)


def _by_layer(report: RouterReport) -> dict[str, _Smallest]:
    num_tokens = {layer.name: sum(layer.counts or ()) for layer in report.layers}
    return {name: _smallest(shares, num_tokens=num_tokens[name]) for name, shares in _shares(report).items()}


def _whole(report: RouterReport) -> _Smallest | None:
    """Of all layers together; None of a model of one, which is judged as a layer."""
    shares = _shares(report)
    num_tokens = {layer.name: sum(layer.counts or ()) for layer in report.layers if layer.name in shares}
    total = sum(num_tokens.values())
    if len(shares) < 2:
        return None
    whole = [
        math.fsum(shares[name][population] * num for name, num in num_tokens.items()) / total
        for population in range(report.num_populations)
    ]
    return _smallest(whole, num_tokens=total)


def _smallest(shares: Sequence[float], *, num_tokens: int) -> _Smallest:
    least, even = min(shares), 1 / len(shares)
    return _Smallest(
        population=list(shares).index(least),
        share=least,
        is_small=least < LEAST_SHARE * even,
        may_be_chance=_may_be_chance(least, even, num_tokens=num_tokens),
    )


def _may_be_chance(share: float, even: float, *, num_tokens: int) -> bool:
    """Whether an even router may show so small a share; Chernoff's bound, exp(-T * KL(share, even))."""
    divergence = (1 - share) * math.log((1 - share) / (1 - even))
    if share > 0:
        divergence += share * math.log(share / even)
    return num_tokens * divergence < -math.log(CHANCE)
