"""`Decision`: what was decided about one micro-batch, by the host or on a device, and what follows for a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict that nobody need look at.

    Attributes:
        keep: The verdict, the same on every rank: whether the micro-batch takes part in the update. A bool where the
            host decided, else a 0-d bool tensor on the device of the loss.
        counts: Whether this rank's gradient counts, likewise: also not where the micro-batch is kept, but has no token
            here, and no further term that is finite (its loss is 0/0, or the gradient of ignored rows NaN).
    """

    keep: bool | torch.Tensor
    counts: bool | torch.Tensor

    def kept(self, values: torch.Tensor) -> torch.Tensor:
        """`values` where this rank's gradient counts, else zeros that hang on the same graph. Never waits.

        Its backward is safe under the mask alone: zero times an infinite derivative is NaN until a hook masks it.
        """
        return where_kept(self.counts, values)

    def by_verdict(self, values: torch.Tensor) -> torch.Tensor:
        """`values` where the micro-batch takes part in the update, else zeros. Never waits."""
        return where_kept(self.keep, values)


def where_kept(condition: bool | torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: FBT001 - a verdict
    """`values` where the condition holds, else zeros that hang on the same graph; never waits.

    Args:
        condition: A bool of the host, which gives back `values` themselves if it is True, or a 0-d bool tensor.
        values: Any shape and dtype.
    """
    if isinstance(condition, bool):
        if condition:
            return values
        condition = torch.zeros((), dtype=torch.bool, device=values.device)
    return torch.where(condition.to(values.device, non_blocking=True), values, 0)
