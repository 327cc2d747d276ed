"""What state a router is in, from confidence and balance together: neither tells it alone, and z tells neither.

The figures of one layer come in, a `Condition` goes out. A sure router with a balanced load is a specialised one; an
unsure one with a balanced load is young; it is the load on few experts that is the harm, and the confidence tells which
of two opposite faults it is.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from trimtab.rules.router.figures import (
    busiest_share,
    crowding_by_chance,
    finite,
    known_top_k,
    load_entropy,
    load_share,
    max_vio,
    usable_counts,
)
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures

Confidence = Literal["uniform", "one_hot", "between"]

UNIFORM: Final = 0.99
"""Part of ln E from which a token entropy is that of a router that does not choose. Logits of standard deviation s have
ln E - s^2 / 2: at 8 experts that is s = 0.2, a fifth of what an ordinary router has."""

UNIFORM_SPREAD: Final = 0.5
"""Largest minus smallest logit under which a router does not choose: the likeliest expert then has e^0.5 = 1.6 times
the chance of the least likely one."""

ONE_HOT: Final = 0.05
"""Part of ln E under which a router is sure: at 8 experts the first one has a probability of 0.985."""

BUSIEST: Final = 0.5
"""Part of the tokens that the busiest expert of a collapsed layer gets more than; at balance it is k / E."""

TAKES_ALL: Final = 0.99
"""Part of the tokens that one expert of a sure router gets when it is the first choice of all: what the others get are
choices behind a probability of 1, which spread over all of them and make the load look even."""

TAKES_MOST: Final = 0.9
"""Part under which that is over."""

CROWDING_CHANCE: Final = 0.01
"""Chance that a balanced router looks like that. Two experts with 8 tokens to 0 have 0.008; a report of hundreds of
tokens is never near the bound, so it decides about tiny ones only."""

BACK: Final = 1.5
"""Factor by which a load entropy is above its bound when a layer has come back."""


class Condition(NamedTuple):
    """The state of a router; None where figures lack.

    Attributes:
        confidence: "uniform", "one_hot", or between.
        crowded: Whether the load, or the first choice of a sure router, is on few experts; None also where it is
            neither that nor clearly balanced.
        load: Load entropy from 0 (all on the same k experts) to 1 (balance).
        figures: The numbers behind it.
    """

    confidence: Confidence | None
    crowded: bool | None
    load: float | None
    figures: dict[str, float | int | None]


def condition_of(layer: LayerFigures, config: WatchConfig) -> Condition:
    """The state that the figures of a layer show."""
    counts, entropy, spread = usable_counts(layer), finite(layer.token_entropy), finite(layer.spread)
    num_experts = len(counts) if counts is not None else layer.num_experts
    confidence = _confidence(entropy, spread=spread, num_experts=num_experts)
    figures: dict[str, float | int | None] = {
        "num_experts": num_experts,
        "token_entropy": entropy,
        "spread": spread,
        "load_entropy": None if counts is None else load_entropy(counts),
        "max_vio": None if counts is None else max_vio(counts),
    }
    if counts is None:
        return Condition(confidence, None, None, figures)

    top_k = known_top_k(layer)
    load, share = load_share(counts, top_k=top_k), busiest_share(counts, top_k=top_k)
    assert load is not None
    assert share is not None
    figures["busiest_share"] = share
    chance = crowding_by_chance(sum(counts) // top_k, num_experts=len(counts), top_k=top_k, share=share)
    is_sure = confidence == "one_hot"
    on_few = (load < config.collapse_load and share > BUSIEST) or (is_sure and share >= TAKES_ALL)
    if on_few and chance < math.log(CROWDING_CHANCE):
        crowded: bool | None = True
    elif is_sure and share >= TAKES_MOST:
        crowded = None
    else:
        crowded = False if load >= min(1.0, BACK * config.collapse_load) or share <= BUSIEST / BACK else None
    return Condition(confidence, crowded, load, figures)


def part_of_uniform(layer: LayerFigures) -> float | None:
    """Token entropy as a part of ln E: 1 where the router is uniform."""
    entropy = finite(layer.token_entropy)
    num_experts = layer.num_experts if layer.counts is None else len(layer.counts)
    if entropy is None or num_experts is None or num_experts < 2:
        return None
    return entropy / math.log(num_experts)


def _confidence(entropy: float | None, *, spread: float | None, num_experts: int | None) -> Confidence | None:
    if entropy is None or num_experts is None or num_experts < 2:
        return None
    part = entropy / math.log(num_experts)
    if part >= UNIFORM and (spread is None or spread < UNIFORM_SPREAD):
        return "uniform"
    return "one_hot" if part < ONE_HOT else "between"
