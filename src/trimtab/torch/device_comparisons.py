"""What each rule of `LIVE_RULES` compares a loss with, as tensor code.

Enter: a loss and a padded window, newest value first, float64 on the device. Leaves: a `Comparison`. Invariants: each
comparison is that of the rule of its name, operation by operation; nothing waits for the device; nothing that a
verdict depends on multiplies and then adds, which a compiler may fuse into another rounding.

Shapes: W values in the window. Everything else is 0-d.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

import torch

from trimtab.rules.live import LiveRule, LiveRuleName
from trimtab.rules.robust import ABSOLUTE_FLOOR, MAD_TO_SIGMA, RELATIVE_FLOOR


class Comparison(NamedTuple):
    """How a loss compares; a bool is False where nothing could be compared, a float64 is NaN there.

    Attributes:
        is_usable: Whether the baseline says something.
        is_spike: Whether the loss exceeds the threshold.
        is_normal: Whether it does not.
        baseline: What it was compared with.
        threshold: What it had to exceed.
    """

    is_usable: torch.Tensor
    is_spike: torch.Tensor
    is_normal: torch.Tensor
    baseline: torch.Tensor
    threshold: torch.Tensor


class Compare(Protocol):
    """A rule's comparison."""

    padding: float
    """What stands in a window where it holds no value yet."""

    def __init__(self, rule: LiveRule, /, *, device: torch.device | str) -> None: ...

    def __call__(
        self, loss: torch.Tensor, window: torch.Tensor, num_values: torch.Tensor, is_comparable: torch.Tensor
    ) -> Comparison:
        """Compares a loss with the window.

        Args:
            loss: float64.
            window: (W,) float64.
            num_values: int64, values absorbed so far; more than W where some have left.
            is_comparable: bool, whether the loss is finite and there are enough values.
        """


class MeanComparison:
    """`trimtab.rules.mean.MeanRule`: a spike exceeds a multiple of the mean, where that is positive."""

    padding = 0.0
    """Adds nothing to a sum."""

    def __init__(self, rule: LiveRule, /, *, device: torch.device | str) -> None:
        self._size = rule.window_size
        self._multiplier = rule.settings["multiplier"]
        self._nan = torch.full((), math.nan, dtype=torch.float64, device=device)

    def __call__(
        self, loss: torch.Tensor, window: torch.Tensor, num_values: torch.Tensor, is_comparable: torch.Tensor
    ) -> Comparison:
        """See `Compare`."""
        mean = exact_sum(window) / num_values.clamp(max=self._size)
        baseline = torch.where(is_comparable, mean, self._nan)
        is_usable = baseline > 0
        threshold = torch.where(is_usable, baseline * self._multiplier, self._nan)
        return Comparison(is_usable, loss > threshold, loss <= threshold, baseline, threshold)


class RobustComparison:
    """`trimtab.rules.robust.RobustRule`: a spike lies more than k robust scales above the median."""

    padding = math.inf
    """Sorts behind every value."""

    def __init__(self, rule: LiveRule, /, *, device: torch.device | str) -> None:
        self._size = rule.window_size
        self._k = rule.settings["k"]
        self._nan = torch.full((), math.nan, dtype=torch.float64, device=device)
        num_values = torch.arange(self._size + 1, device=device)
        # By the number of values: where in sorted order the two middle ones stand; of an odd number it is one twice.
        self._middle = torch.stack([(num_values - 1).clamp(min=0) // 2, num_values // 2], 1)

    def __call__(
        self, loss: torch.Tensor, window: torch.Tensor, num_values: torch.Tensor, is_comparable: torch.Tensor
    ) -> Comparison:
        """See `Compare`."""
        # With an index of one element: indexing with a 0-d tensor waits for it.
        middle = self._middle.index_select(0, num_values.clamp(max=self._size).view(1)).view(2)
        baseline = torch.where(is_comparable, _median(window, middle), self._nan)
        mad = _median((window - baseline).abs(), middle)
        scale = torch.maximum(MAD_TO_SIGMA * mad, RELATIVE_FLOOR * baseline.abs()).clamp(min=ABSOLUTE_FLOOR)
        margin = self._k * scale
        distance = loss - baseline
        return Comparison(is_comparable, distance > margin, distance <= margin, baseline, baseline + margin)


COMPARISONS: Final[dict[LiveRuleName, type[Compare]]] = {"mean": MeanComparison, "robust": RobustComparison}
"""Every rule that a guard can be given; a test compares the names with those of `LIVE_RULES`."""


def exact_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum that is rounded once, as that of `math.fsum`, so that no order of summation can matter.

    The values are split at a bit that the largest of them sets, and what lies above adds up without an error. So does
    what lies below, for up to 128 values that span no more than 2^64 (zeros aside); beyond, the last bit may be off.

    Args:
        values: (W,) float64, finite float32 values.
    """
    # A power of two: a compiler that fuses this product with the sum below then changes nothing.
    bound = values.abs().amax() * 2.0 ** (values.shape[0].bit_length() + 2)
    upper = (values + bound) - bound
    return upper.sum() + (values - upper).sum()


def _median(values: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """Mean of the values at two places, (2,) int64, in sorted order."""
    return values.sort().values.index_select(0, middle).mean()
