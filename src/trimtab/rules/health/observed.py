"""`ObservedStep`: an optimizer step as the rules of health see it.

Enters and leaves: plain numbers, whoever had them first: a running training, whose numbers have come to the host, or a
log. Standard library only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trimtab.values import GRADIENTLESS, StepReason


class ObservedStep(NamedTuple):
    """One optimizer step; None, NaN or 0 where a number is not known.

    Attributes:
        step: 1-based optimizer step.
        loss: What the run reports as its loss; NaN if unknown.
        grad_norm: Gradient norm before clipping.
        clipped: Whether clipping changed the gradient.
        lr: Learning rate of the step.
        loss_scale: The gradient scaler's scale.
        wall_s: Seconds since the previous step ended.
        num_tokens: Supervised tokens of the step.
        reason: What became of it.
        num_skipped_micros: Micro-batches that a guard left out.
    """

    step: int
    loss: float = math.nan
    grad_norm: float | None = None
    clipped: bool | None = None
    lr: float | None = None
    loss_scale: float | None = None
    wall_s: float = math.nan
    num_tokens: int = 0
    reason: StepReason = "stepped"
    num_skipped_micros: int = 0

    @property
    def is_stepped(self) -> bool:
        """Whether the parameters moved."""
        return self.reason == "stepped"

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient counted in it, so that its norm can say something."""
        return self.reason not in GRADIENTLESS
