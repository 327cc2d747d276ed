"""What a study trains: which weights and seeds, and to which step where its time is short.

Enters: weights, seeds, minutes. Leaves: arms, and steps to train them to. Invariant: arms are compared at a step that
all of them have reached, which is one at which they are evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from recipes.twin_moe.study.arm import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a study trains where nothing else is asked for.

    Attributes:
        weights: z weights: four decades, and none as the control.
        num_seeds: Trainings of each. Two, because what one seed shows may be of the seed.
        minutes: What the training may take; None: as long as it takes. Where it is given, the preset is for a GPU.
    """

    weights: tuple[float, ...] = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    num_seeds: int = 2
    minutes: float | None = None


_OF_PRESETS: Final = {"local140a50": Defaults(weights=(1e-5, 1e-4, 1e-3), num_seeds=1, minutes=5.0)}
"""Where a preset's are others. The large one's device time is short: the weight that killed a router of its size, the
one that held, and one below."""


def defaults_of(preset: str) -> Defaults:
    """What a study of a preset trains; those without an entry here need none."""
    return _OF_PRESETS.get(preset, Defaults())


def plan(weights: Sequence[float], extra: Sequence[float] = (), *, seeds: Sequence[int]) -> list[Arm]:
    """The arms of a study: each weight once a seed, seed by seed, so that an early look has all weights.

    Args:
        weights: Of the sweep.
        extra: Outside of it.
        seeds: Seeds of each weight.
    """
    once = dict.fromkeys(weights, True) | {weight: False for weight in extra if weight not in weights}
    return [Arm(z_weight=weight, seed=seed, in_sweep=in_sweep) for seed in seeds for weight, in_sweep in once.items()]


def stops(
    done: Callable[[], Sequence[int]],
    *,
    num_steps: int,
    eval_every: int,
    minutes: float | None,
    clock: Callable[[], float],
) -> Iterator[int]:
    """The steps to which all arms are trained, one after the other, until the last or until the time is up.

    The first stretch is one evaluation's, and tells what a step takes, all arms together; each one after it is as many
    evaluations as fit into what is left. It is at an evaluation that all arms end: there they are compared.

    Args:
        done: The step that each arm has reached.
        num_steps: The last.
        eval_every: Steps between two evaluations.
        minutes: What there is; None: as long as it takes.
        clock: Seconds, of which differences count.
    """
    if minutes is None:
        yield num_steps
        return
    end, reached = clock() + 60 * minutes, done()
    stop = max(reached)
    if min(reached) == stop or stop % eval_every:
        stop += eval_every - stop % eval_every
    while True:
        stop, begun, before = min(stop, num_steps), clock(), sum(reached)
        yield stop
        reached = done()
        num_trained = sum(reached) - before
        if stop == num_steps or not num_trained:
            return
        step_s = (clock() - begun) * len(reached) / num_trained
        num_evals = math.floor((end - clock()) / (step_s * eval_every))
        if num_evals < 1:
            return
        stop += num_evals * eval_every
