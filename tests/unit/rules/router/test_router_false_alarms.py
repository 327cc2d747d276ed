"""Healthy runs, simulated with noise and drift: what is said in all of them."""

import math
import random

import pytest

from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

NUM_REPORTS = 200
NUM_LAYERS = 6
NUM_EXPERTS = 8


class Wandering:
    """A figure about 1: noise that lasts for about ten reports, on a random walk."""

    def __init__(self, rng: random.Random, *, noise: float, walk: float) -> None:
        self._rng, self._noise, self._walk = rng, noise, walk
        self._lasting = self._place = 0.0

    def next(self) -> float:
        self._lasting = 0.9 * self._lasting + math.sqrt(1 - 0.81) * self._rng.gauss(0, self._noise)
        self._place += self._rng.gauss(0, self._walk)
        return math.exp(self._lasting + self._place)


def healthy_run(seed: int, *, noise: float) -> list[WatchFinding]:
    """What is said of a run whose routers sharpen at first, then wander about an ordinary state."""
    rng, rules = random.Random(seed), RouterRules(WatchConfig())
    zs, balances, loads = (
        [[Wandering(rng, noise=noise, walk=noise / 10) for _ in range(num)] for _ in range(NUM_LAYERS)]
        for num in (1, 1, NUM_EXPERTS)
    )
    found: list[WatchFinding] = []
    for place in range(NUM_REPORTS):
        learnt = 1 - math.exp(-place / 8)
        layers = []
        for n in range(NUM_LAYERS):
            z = math.log(NUM_EXPERTS) ** 2 * (1 + 0.8 * learnt) * zs[n][0].next()
            weights = [load.next() for load in loads[n]]
            counts = tuple(round(51_200 * weight / sum(weights)) for weight in weights)
            layers.append(
                LayerFigures(
                    name=f"moe.{n}",
                    num_experts=NUM_EXPERTS,
                    top_k=1,
                    z=z,
                    lse=math.sqrt(z) * 0.98,
                    load_balance=1.05 * balances[n][0].next(),
                    counts=counts,
                    token_entropy=math.log(NUM_EXPERTS) * (1 - 0.4 * learnt),
                    spread=0.02 + 4 * learnt,
                )
            )
        step = 50 * (place + 1)
        found += rules.judge(RouterReport(step=step, first_step=step - 49, layers=tuple(layers)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_with_realistic_noise_is_warned_of_nothing(seed: int) -> None:
    assert not healthy_run(seed, noise=0.05)


@pytest.mark.long
def test_thirty_healthy_runs_are_warned_of_nothing_and_noisy_ones_seldom() -> None:
    assert not [finding for seed in range(30) for finding in healthy_run(seed, noise=0.05)]
    assert sum(bool(healthy_run(seed, noise=0.1)) for seed in range(20)) <= 4
