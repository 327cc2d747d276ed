"""A run's steps as numbers, which may still be on their way from a device.

Enters: steps as they are recorded, or the numbers of a log. Leaves: `SeenStep`s. Invariant: a step that reports no loss
has none, whatever number stands in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from trimtab.recorder.arrival import have_arrived, number_of
from trimtab.resume.breaks import SeenStep
from trimtab.values import STEP_CODE, StepRow

_NO_LOSS: Final = frozenset((STEP_CODE["all_skipped"], STEP_CODE["no_tokens"]))


def remembered(steps: Iterable[StepRow]) -> tuple[SeenStep, ...]:
    """The steps as numbers; waits for those that are still on their way from a device."""
    return tuple(map(seen_step, steps))


def seen_step(item: StepRow) -> SeenStep:
    """The step as numbers; waits for those that are still on their way from a device."""
    return step_of_numbers(item.step, number_of(item.loss), number_of(item.lr), number_of(item.reason))


def step_of_numbers(step: int, loss: float | None, lr: float | None, reason: float | None) -> SeenStep:
    """The step that these numbers tell of, `reason` being an index into `STEP_REASONS`."""
    # NaN is what a step without any kept token reports, and what a host does that knows no loss: `reason` tells them
    # from a model that is broken, whose step is "stepped" or dropped for its norm.
    has_loss = reason not in _NO_LOSS
    known_lr = lr if lr is not None and math.isfinite(lr) else None
    return SeenStep(step, loss if has_loss else None, known_lr, is_skipped=reason == STEP_CODE["all_skipped"])


def has_arrived(item: StepRow) -> bool:
    """Whether the numbers of a step can be asked for without waiting."""
    return have_arrived((item.loss, item.lr, item.reason))
