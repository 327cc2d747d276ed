"""The sums of one accumulation window, kept on the device, and the two ways in which they become a mean.

`normalize="micro"`: every micro-batch counts alike, whatever its tokens. `normalize="window"`: every supervised token
of the window counts alike. Under `skipped_tokens="removed"` what the guard left out is taken out of the divisor too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from trimtab.run import WindowCounts


def _no_tokens() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


@dataclass(slots=True)
class WindowTotals:
    """What a window holds so far; 0-d tensors, on the device as soon as a micro-batch was added.

    Attributes:
        loss: Sum over kept micro-batches of their mean ("micro") or of their loss sum ("window").
        num_tokens: Supervised tokens, those of skipped micro-batches among them.
        num_kept_tokens: Supervised tokens that take part in the update.
    """

    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    num_tokens: torch.Tensor = field(default_factory=_no_tokens)
    num_kept_tokens: torch.Tensor = field(default_factory=_no_tokens)

    def micro_factor(self, counts: WindowCounts, *, accumulation: int, removed: bool) -> float:
        """What gradients of means / `accumulation` must be multiplied by; 1.0 for a full window without a skip."""
        return accumulation / (counts.num_kept_micros if removed else counts.num_micros)

    def token_factor(self, *, divisor: float, removed: bool) -> torch.Tensor:
        """What gradients of loss sums / `divisor` must be multiplied by, 0-d float64; 0 for a window without tokens."""
        tokens = self.num_kept_tokens if removed else self.num_tokens
        return torch.where(tokens > 0, divisor / tokens.clamp(min=1).to(torch.float64), 0.0)

    def reported_micro_loss(self, counts: WindowCounts, *, removed: bool) -> torch.Tensor:
        """Mean of the kept means, 0-d; NaN if nothing was kept, for a loss of 0.0 would look like a perfect one."""
        num_micros = max(counts.num_kept_micros if removed else counts.num_micros, 1)
        return torch.where(self.num_kept_tokens > 0, self.loss / num_micros, math.nan)

    def reported_token_loss(self, *, removed: bool) -> torch.Tensor:
        """Mean over tokens, 0-d; NaN if nothing was kept."""
        tokens = self.num_kept_tokens if removed else self.num_tokens
        return torch.where(self.num_kept_tokens > 0, self.loss / tokens, math.nan)
