"""What the rules of health see: an optimizer step, an evaluation, a look at the machine.

Enters and leaves: plain numbers, whoever had them first: a running training, whose numbers have come to the host, or a
log. Standard library only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trimtab.values import GRADIENTLESS, StepReason
from trimtab.watched import Vitals


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
        tokens_per_s: What the run itself calls its pace; None: that of its tokens and seconds.
        is_loss_known: Whether a loss of NaN is what the run had, and not the NaN that a log has for none.
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
    tokens_per_s: float | None = None
    is_loss_known: bool = False

    @property
    def is_stepped(self) -> bool:
        """Whether the parameters moved."""
        return self.reason == "stepped"

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient counted in it, so that its norm can say something."""
        return self.reason not in GRADIENTLESS


class ObservedEvaluation(NamedTuple):
    """One evaluation, and what speaks for or against it.

    Attributes:
        step: Optimizer step (1-based) after which it took place.
        loss: Its loss.
        train_loss: Mean train loss over the steps since the evaluation before; None: not known.
        name: Of its dataset; empty where there is only one.
        weights_finite: Whether the weights were finite; None where nobody looked.
        may_be_best: Whether nothing else speaks against it.
        has_router: Whether routers are watched too, so that one may be why.
    """

    step: int
    loss: float
    train_loss: float | None
    name: str = ""
    weights_finite: bool | None = None
    may_be_best: bool = True
    has_router: bool = False


class ObservedVitals(NamedTuple):
    """One look at the machine and the model.

    Attributes:
        vitals: The figures.
        lr: Learning rate of the step before it; None: not known.
    """

    vitals: Vitals
    lr: float | None
