"""How far apart two trainings are: to the last bit the same, the same to rounding, or different.

Enters: the outcomes of two trials on every rank. Leaves: a `Distance`. Invariant: what is not finite is never the same
as anything but its own bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trimtab.proof.snapshot import Snapshot
from trimtab.proof.trial import Outcome

_STEP_ROUNDINGS = 16.0
"""Units in the last place of the largest parameter that a few steps may differ by."""

_SHARE_OF_MOVE = 1e-3
"""A difference of more than this share of what the window moved is no rounding, however small the step was."""

_MOMENT_ROUNDINGS = 1000.0
"""Units in the last place, relative, that moments may differ by."""


class Distance(NamedTuple):
    """How far one state is from another, the worst of all ranks.

    Attributes:
        is_bitwise: Whether they are the same to the last bit.
        is_near: Whether they are the same, be it to rounding.
        parameters: 2-norm of the difference of the parameters; NaN or Inf where they cannot be compared.
        state: 2-norm of the difference of the optimizer's moments and step counts; Inf where they cannot be compared.
        move: 2-norm of what the parameters moved in the expected training, since its first state.
    """

    is_bitwise: bool
    is_near: bool
    parameters: float
    state: float
    move: float


def distance(found: Sequence[Outcome], expected: Sequence[Outcome], *, window: int, since: int) -> Distance:
    """How far two trainings are apart after a window, on whichever rank they are furthest.

    Args:
        found: One outcome a rank.
        expected: Likewise.
        window: 0-based; -1 is the last.
        since: The first window whose moves count for what is rounding.
    """
    place = window + 1 if window >= 0 else -1
    each = [
        _apart(ours.snapshots[place], theirs.snapshots[place], before=theirs.snapshots[since])
        for ours, theirs in zip(found, expected, strict=True)
    ]
    worst = max(each, key=lambda one: (not one.is_near, math.inf if math.isnan(one.parameters) else one.parameters))
    return worst._replace(is_bitwise=all(one.is_bitwise for one in each))


def largest_gap(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two numbers at the same place; Inf where shapes differ, NaN where one is NaN."""
    if first.shape != second.shape:
        return math.inf
    if not first.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(np.abs(first - second).max())


def state_gap(found: Snapshot, expected: Snapshot) -> float:
    """2-norm of the difference of what the optimizers hold: moments and step counts; Inf where they hold other ones."""
    pairs = ((found.moments, expected.moments), (found.steps, expected.steps))
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        return math.inf
    return math.hypot(*(norm(ours - theirs) for ours, theirs in pairs))


def norm(numbers: np.ndarray) -> float:
    """The 2-norm."""
    return float(np.linalg.norm(numbers))


def _apart(found: Snapshot, expected: Snapshot, *, before: Snapshot) -> Distance:
    move = norm(expected.parameters - before.parameters)
    if found.digest == expected.digest:
        return Distance(True, True, 0.0, 0.0, move)
    gap, state = largest_gap(found.parameters, expected.parameters), state_gap(found, expected)
    if not math.isfinite(gap):
        return Distance(False, False, gap, state, move)
    length = norm(found.parameters - expected.parameters)
    largest = float(np.abs(expected.parameters).max(initial=0.0))
    is_near = (
        gap <= _STEP_ROUNDINGS * expected.epsilon * largest
        and length <= _SHARE_OF_MOVE * move
        and found.moments.shape == expected.moments.shape
        and norm(found.moments - expected.moments)
        <= min(_MOMENT_ROUNDINGS * expected.epsilon, 0.02) * norm(expected.moments)
        and np.array_equal(found.steps, expected.steps)
    )
    return Distance(False, is_near, length, state, move)
