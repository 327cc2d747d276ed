"""What a run records, as the rules take it: plain numbers, the same that its log will hold.

Enters: steps as they are recorded. Leaves: what `HealthRules` judges. Invariant: a number that the log keeps in fewer
bits, or does not keep, is judged as the log has it, so that the log alone gives the same findings.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from trimtab.recorder.arrival import number_of
from trimtab.rules.health.observed import ObservedStep
from trimtab.values import GRADIENTLESS, STEP_REASONS, StepRow


def observed_step(item: StepRow) -> ObservedStep | None:
    """The step as plain numbers; None for one that the log refuses. Waits for those on their way from a device."""
    code = number_of(item.reason)
    if code is None or not math.isfinite(code) or not 0 <= code < len(STEP_REASONS):
        return None
    reason = STEP_REASONS[int(code)]
    has_gradient = reason not in GRADIENTLESS
    return ObservedStep(
        step=item.step,
        loss=_or_nan(item.loss),
        grad_norm=number_of(item.grad_norm) if has_gradient else None,
        clipped=bool(item.clipped) if has_gradient and item.clipped is not None else None,
        lr=number_of(item.lr),
        loss_scale=_or_none(item.loss_scale),
        wall_s=_rounded(item.wall_s),
        num_tokens=_count(item.num_tokens),
        reason=reason,
        is_loss_known=not isinstance(item.loss, float | None),  # a host that knows none hands over a NaN of its own
    )


def _or_nan(value: Any) -> float:
    number = number_of(value)
    return math.nan if number is None else number


def _or_none(value: Any) -> float | None:
    number = number_of(value)
    return None if number is None or math.isnan(number) else number


def _count(value: Any) -> int:
    """A count; -1, as the log has it, where nobody counted."""
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) else -1


def _rounded(seconds: float) -> float:
    """To the float32 that the log keeps."""
    try:
        return float(struct.unpack("f", struct.pack("f", seconds))[0])
    except OverflowError:
        return math.inf
