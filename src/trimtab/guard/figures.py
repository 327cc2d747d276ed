"""`MicroFigures`: what one micro-batch is judged by, this rank's figures and those of all ranks; plain numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from trimtab.values import Verdict


def sum_to_judge(loss_sum: Any, num_tokens: Any, aux: Any, beyond: Any) -> Any:
    """What a rank has to be judged; not finite if anything of it is not.

    Args:
        loss_sum: As in `MicroFigures`, as are the others; numbers, or 0-d arrays of any framework.
        num_tokens: As there.
        aux: As there.
        beyond: As there.
    """
    # A term that is not finite poisons the gradient as surely as the loss itself; times zero keeps any other.
    return loss_sum + aux * 0.0 + beyond * num_tokens


class Leader(NamedTuple):
    """Which row of a micro-batch is to be looked at first.

    Attributes:
        row: The first row whose loss is not finite, else the one with the largest loss sum.
        num_nonfinite: Rows whose loss is not finite.
    """

    row: int
    num_nonfinite: int = 0


class MicroFigures(NamedTuple):
    """The figures of one micro-batch.

    Attributes:
        loss_sum: Sum of its loss over this rank's supervised tokens.
        num_tokens: Their count.
        aux: Sum of this rank's further loss terms; the micro-batch is skipped if this is not finite.
        beyond: What this rank's loss holds beside that of its tokens, in the unit of their mean: it is judged with it.
        together: Sum of what is judged, not finite if any rank's is not, and tokens of all ranks, by which every rank
            decides alike; None: this rank is the only one.
    """

    loss_sum: float
    num_tokens: int
    aux: float = 0.0
    beyond: float = 0.0
    together: tuple[float, int] | None = None

    @property
    def own_sum(self) -> float:
        """What this rank has to be judged; not finite if anything of it is not."""
        own_sum: float = sum_to_judge(self.loss_sum, self.num_tokens, self.aux, self.beyond)
        return own_sum

    @property
    def judged(self) -> tuple[float, int]:
        """Sum and tokens that the verdict comes from."""
        return (self.own_sum, self.num_tokens) if self.together is None else self.together

    def cause(self, verdict: Verdict) -> bool:
        """Whether this rank's figures alone would have been skipped; always so for the only rank."""
        if self.together is None:
            return True
        own_sum = self.own_sum
        is_above = verdict.threshold is not None and own_sum > verdict.threshold * self.num_tokens
        return self.num_tokens > 0 and (is_above or not math.isfinite(own_sum))

    def is_of_a_term(self, verdict: Verdict) -> bool:
        """Whether a further term made it a skip, and no row is to blame: finite losses, or mostly such a term."""
        if verdict.reason == "nonfinite":
            return math.isfinite(self.loss_sum)
        return 2 * abs(self.beyond) > abs(verdict.loss)
