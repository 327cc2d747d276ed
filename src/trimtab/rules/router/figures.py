"""What follows from the counts of a router: how uneven the load is, and whether chance explains a silence.

Enters: counts of tokens per expert, and how many experts a token goes to. Leaves: plain numbers. Invariant: figures are
functions of the counts alone, so that a report, a log and a rule say the same; where counts tell nothing, None, which
is NaN in the tensors of `trimtab.moe`: the figures of one name are the same there.

Shapes: E experts, P populations, k experts a token is sent to, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trimtab.watched import LayerFigures


def max_vio(counts: Sequence[int]) -> float | None:
    """Largest load over mean load, minus 1: 0 at balance, at most E / k - 1 (Wang et al. 2024, arXiv:2408.15664).

    Args:
        counts: (E,) tokens sent to each expert.

    Returns:
        The figure; None where no token was routed.

    Example:
        >>> max_vio([3, 1, 2, 2]), max_vio([0, 0])
        (0.5, None)
    """
    total = sum(counts)
    return max(counts) * len(counts) / total - 1 if total else None


def load_entropy(counts: Sequence[int]) -> float | None:
    """Entropy of the load, nats: ln E at balance, ln k where all tokens go to the same k experts. Balance.

    Not to be taken for the token entropy, which is a router's confidence.

    Args:
        counts: (E,) tokens sent to each expert.

    Returns:
        The figure; None where no token was routed.

    Example:
        >>> round(load_entropy([5, 5]), 4), load_entropy([9, 0])
        (0.6931, 0.0)
    """
    total = sum(counts)
    if not total:
        return None
    # Minus 0.0 would be spelled as such.
    return math.fsum(count / total * math.log(total / count) for count in counts if count)


def load_share(counts: Sequence[int], *, top_k: int) -> float | None:
    """Load entropy on a scale from 0 (all tokens on the same k experts) to 1 (balance).

    Args:
        counts: (E,) tokens sent to each expert.
        top_k: k.

    Returns:
        (H - ln k) / (ln E - ln k), inside 0..1; None where no token was routed or there is nothing to choose.
    """
    entropy = load_entropy(counts)
    if entropy is None or not 0 < top_k < len(counts):
        return None
    least = math.log(top_k)
    return min(1.0, max(0.0, (entropy - least) / (math.log(len(counts)) - least)))


def busiest_share(counts: Sequence[int], *, top_k: int) -> float | None:
    """Part of the tokens that the busiest expert gets: k / E at balance, 1 where every token goes there."""
    total = sum(counts)
    return min(1.0, max(counts) * top_k / total) if total else None


def population_shares(counts: Sequence[int], *, num_populations: int) -> tuple[float, ...] | None:
    """Share of the routed tokens that each population of experts gets; reported, never judged.

    Args:
        counts: (E,) tokens sent to each expert; population p has the experts from p * (E // P) on.
        num_populations: P.

    Returns:
        (P,) shares that sum to 1; None where no token was routed, or P does not divide E (`trimtab.moe` refuses that).

    Example:
        >>> population_shares([3, 1, 2, 2], num_populations=2)
        (0.5, 0.5)
    """
    total = sum(counts)
    if num_populations < 1 or len(counts) % num_populations or not total:
        return None
    size = len(counts) // num_populations
    return tuple(sum(counts[place * size : (place + 1) * size]) / total for place in range(num_populations))


def silence_by_chance(num_tokens: int, *, num_experts: int, top_k: int, num_silent: int = 1) -> float:
    """Logarithm of a bound on the chance that some `num_silent` experts of a balanced router get no token.

    For one expert E * (1 - k / E)^T, the union over experts; for several the number of choices times the chance that
    none of them is among the k, which are drawn without repetition.

    Args:
        num_tokens: T.
        num_experts: E.
        top_k: k.
        num_silent: How many experts got none.

    Returns:
        The natural logarithm; minus infinity where it can not be chance, 0 at most.

    Example:
        >>> round(math.exp(silence_by_chance(64, num_experts=8, top_k=1)), 5)
        0.00155
    """
    if num_tokens <= 0 or num_silent <= 0:
        return 0.0
    if num_silent > num_experts - top_k:
        return -math.inf
    missed = _log_choices(num_experts - num_silent, top_k) - _log_choices(num_experts, top_k)
    return min(0.0, _log_choices(num_experts, num_silent) + num_tokens * missed)


def crowding_by_chance(num_tokens: int, *, num_experts: int, top_k: int, share: float) -> float:
    """Logarithm of a bound on the chance that some expert of a balanced router gets this share of the tokens.

    The union over experts of Chernoff's bound, E * exp(-T * KL(share, k / E)).

    Args:
        num_tokens: T.
        num_experts: E.
        top_k: k.
        share: Part of the tokens, 0..1.

    Returns:
        The natural logarithm, 0 at most.

    Example:
        >>> round(math.exp(crowding_by_chance(8, num_experts=2, top_k=1, share=1.0)), 5)
        0.00781
    """
    usual = top_k / num_experts
    if share <= usual or usual <= 0:
        return 0.0
    divergence = share * math.log(share / usual)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - usual))
    return min(0.0, math.log(num_experts) - num_tokens * divergence)


def silent_by_chance(tokens: Mapping[int, int], *, num_experts: int, top_k: int, chance: float) -> tuple[int, ...]:
    """Experts whose silence chance does not explain, beginning with those that are silent longest.

    Experts that are silent equally long are judged together, and once some are known to be dead the rest is judged as
    a router over the others: a dead one proves nothing about its neighbour.

    Args:
        tokens: Silent experts, and the tokens that each was passed over by.
        num_experts: E.
        top_k: k.
        chance: The bound on the chance has to be below this.

    Returns:
        The dead ones, ascending.
    """
    dead: list[int] = []
    waiting: list[int] = []
    by_length = sorted(tokens, key=lambda expert: (-tokens[expert], expert))
    for place, expert in enumerate(by_length):
        waiting.append(expert)
        if place + 1 < len(by_length) and tokens[by_length[place + 1]] == tokens[expert]:
            continue
        left = num_experts - len(dead)
        bound = silence_by_chance(tokens[expert], num_experts=left, top_k=top_k, num_silent=len(waiting))
        if bound < math.log(chance):
            dead += waiting
            waiting = []
    return tuple(sorted(dead))


def usable_counts(layer: LayerFigures) -> tuple[int, ...] | None:
    """Counts that a judgement may rest on: of a router that chooses, as long as its experts, none below 0."""
    counts, top_k = layer.counts, known_top_k(layer)
    if counts is None or not 0 < top_k < len(counts):
        return None
    if layer.num_experts not in (None, len(counts)) or min(counts) < 0 or not sum(counts):
        return None
    return counts


def known_top_k(layer: LayerFigures) -> int:
    """How many experts a token goes to: stated, or told by tokens and counts; else 1, under which less is warned of."""
    if layer.top_k is not None:
        return layer.top_k
    if layer.counts and layer.num_tokens:
        return max(1, round(sum(layer.counts) / layer.num_tokens))
    return 1


def finite(value: float | None) -> float | None:
    """A figure that can be judged: NaN and infinities are none."""
    return value if value is not None and math.isfinite(value) else None


def _log_choices(num: int, chosen: int) -> float:
    """Natural logarithm of the binomial coefficient."""
    return math.lgamma(num + 1) - math.lgamma(chosen + 1) - math.lgamma(num - chosen + 1)
