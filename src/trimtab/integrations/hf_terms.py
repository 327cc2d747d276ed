"""What a trainer's loss holds beside the losses of its tokens: a router's term, a penalty, a factor.

Enters: the final loss of a micro-batch, what its rows cost, and the counts by which it may have been divided. Leaves:
one number that the guard judges with the rows. Invariant: a loss that either count explains, up to rounding, holds
nothing more; nothing here waits for the device.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from trimtab.torch.losses import RowLosses

_NOISE: Final = 1e-3
"""Part of a loss that may come of adding it up in another order."""

_NOISE_EPS: Final = 4
"""The same in units in the last place, for a loss in half precision."""


def loss_beyond_rows(loss: torch.Tensor, rows: RowLosses, *, num_items: Any, rank_factor: int = 1) -> torch.Tensor:
    """What a trainer's loss holds beside the losses of its tokens. Does not wait for the device.

    Args:
        loss: 0-d, detached, the final loss of a micro-batch.
        rows: What its rows cost.
        num_items: Supervised tokens of the window, by which it may have been divided; None: by its own tokens.
        rank_factor: What it may have been multiplied by after that, see `TrainerTap.rank_factor`.

    Returns:
        0-d, in the unit of a mean over tokens; 0 where the loss is the sum of its tokens' losses over either count, up
        to rounding, and where it is not finite.
    """
    total = rows.loss_sum.detach()
    means = [(loss, rows.num_tokens.clamp(min=1))]
    if num_items is not None:
        # A compute_loss of the user's own may leave the factor out.
        means += [(loss / factor, num_items) for factor in sorted({rank_factor, 1})]
    noise = max(_NOISE, _NOISE_EPS * torch.finfo(loss.dtype).eps)
    rests = []
    for mean, divisor in means:
        rest = mean - total / divisor
        rests.append(torch.where(rest.abs() > noise * mean.abs(), rest, 0.0))
    rest = functools.reduce(lambda one, other: torch.where(one.abs() <= other.abs(), one, other), rests)
    return torch.where(torch.isfinite(rest) & (rows.num_tokens > 0), rest, 0.0)
