"""What ranks show each other of a micro-batch, whether a rank's gradient counts, and what the host hears of it later.

Enters: a micro-batch's own figures, 0-d tensors. Leaves: figures whose sum over the ranks is finite, and from that sum
what a guard judges. Invariant: whoever decides, a run on the host, a run on the device or a guard alone, shows the same
figures of the same micro-batch, and masks the same gradients.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch

from trimtab.guard.figures import MicroFigures
from trimtab.torch.device_rule import Ruling
from trimtab.values import VERDICT_REASONS, VerdictReason

_Truth = TypeVar("_Truth", bool, torch.Tensor)


class Shown(NamedTuple):
    """What a rank shows of a micro-batch: 0-d, float64, finite whatever the micro-batch is.

    A sum over ranks with one NaN in it is NaN for all: what is not finite is told by a flag.

    Attributes:
        loss_sum: What is to be judged; 0 where that is not finite, or where there is no token.
        num_tokens: Supervised tokens.
        num_nonfinite: 1 where what is to be judged is not finite, else 0. Without a token it is 0 / 0, and no fault.
    """

    loss_sum: torch.Tensor
    num_tokens: torch.Tensor
    num_nonfinite: torch.Tensor

    @classmethod
    def of(cls, own_sum: torch.Tensor, num_tokens: torch.Tensor) -> Shown:
        """From a rank's own figures; never waits.

        Args:
            own_sum: 0-d float64, what the rank has to be judged, finite or not.
            num_tokens: 0-d float64.
        """
        is_finite, has_tokens = is_finite_number(own_sum), num_tokens > 0
        loss_sum = torch.where(is_finite & has_tokens, own_sum, 0.0)
        return cls(loss_sum, num_tokens, (has_tokens & ~is_finite).to(num_tokens.dtype))


def is_finite_number(number: torch.Tensor) -> torch.Tensor:
    """0-d bool; two kernels on a device, where `isfinite` is four."""
    return number.abs() < math.inf


def counts_here(keep: _Truth, *, has_tokens: _Truth, is_finite: _Truth, has_terms: bool) -> _Truth:
    """Whether this rank's gradient counts; bools of the host, or 0-d bool tensors.

    Args:
        keep: The verdict, alike on every rank.
        has_tokens: Whether the micro-batch has a supervised token on this rank.
        is_finite: Whether what this rank has to be judged is finite.
        has_terms: Whether its loss holds more than that of its tokens. Without a token only such a term has a
            gradient; that of ignored losses is 0, or NaN where they are.
    """
    return keep & (has_tokens | is_finite if has_terms else has_tokens)


def judged_together(loss_sum: float, num_tokens: float, num_nonfinite: float) -> tuple[float, int]:
    """The sums of `Shown` over all ranks as a guard takes them, loss and tokens: what hides a flag is NaN."""
    return math.nan if num_nonfinite else loss_sum, int(num_tokens)


class HeardFigures(NamedTuple):
    """The numbers by which a device has decided about a micro-batch, when they have come to the host.

    Attributes:
        loss_sum: `Shown.loss_sum`, summed over all ranks, as the next two.
        num_tokens: Supervised tokens.
        num_nonfinite: Ranks on which something was not finite.
        own_loss_sum: This rank's, as the next three: see `MicroFigures`.
        own_num_tokens: Supervised tokens.
        own_aux: Further loss terms.
        own_beyond: What the loss holds beside that of its tokens.
        code: Index into `VERDICT_REASONS`.
        keep: The verdict, 1 or 0.
    """

    loss_sum: float
    num_tokens: float
    num_nonfinite: float
    own_loss_sum: float
    own_num_tokens: float
    own_aux: float
    own_beyond: float
    code: float
    keep: float

    @staticmethod
    def on_device(together: torch.Tensor, own: torch.Tensor, ruling: Ruling) -> torch.Tensor:
        """(9,) float64, the fields in their order; never waits.

        Args:
            together: (3,) float64, `Shown` summed over all ranks.
            own: (4,) float64, this rank's loss sum, tokens, further terms, and what is beyond.
            ruling: What was decided by `together`.
        """
        return torch.cat([together, own, torch.stack([ruling.reason.to(own.dtype), ruling.keep.to(own.dtype)])])

    def figures(self, *, alone: bool) -> MicroFigures:
        """What the guard of the host judges.

        Args:
            alone: Whether this rank is the only one.
        """
        together = None if alone else judged_together(self.loss_sum, self.num_tokens, self.num_nonfinite)
        return MicroFigures(self.own_loss_sum, int(self.own_num_tokens), self.own_aux, self.own_beyond, together)

    @property
    def reason(self) -> VerdictReason:
        """What the device decided."""
        return VERDICT_REASONS[int(self.code)]
