"""What was decided on a device, held there until the host can hear of it: the newest 1,024 micro-batches, and counts.

Enters: the figures of a micro-batch over all ranks, its verdict. Leaves: the newest of them as one tensor, to be copied
when it suits, and from its values the micro-batches that the host has not heard of. Invariant: nothing that happens on
the device needs a value on the host, and tensors are changed in place only, so that a compiled graph may hold them.

Layout: a row is (place, loss sum, tokens, non-finite ranks, reason), float64; places count from 1, 0 is an empty row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

SIZE: Final = 1_024
"""Micro-batches that are held. Between two optimizer steps there are rarely more than a few."""

_WIDTH: Final = 5


class DecidedMicro(NamedTuple):
    """One micro-batch as the device saw it; figures are sums over all ranks."""

    place: int
    loss_sum: float
    num_tokens: int
    num_nonfinite: int
    reason: int


class Decided:
    """The decisions of one device.

    Attributes:
        counts: (3,) int64, only ever growing: micro-batches judged, those kept with tokens, those skipped.
    """

    def __init__(self, *, device: torch.device, counts: torch.Tensor | None = None) -> None:
        """Begins empty.

        Args:
            device: Where micro-batches are decided.
            counts: Goes on from these, of the device where it was done before; None: from zero.
        """
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)
        if counts is not None:
            self.counts.copy_(counts)
        self._rows = torch.zeros(SIZE, _WIDTH, dtype=torch.float64, device=device)
        self._one = torch.ones((), dtype=torch.bool, device=device)
        self._ages = torch.arange(SIZE, device=device)

    def add(self, figures: torch.Tensor, *, keep: torch.Tensor, reason: torch.Tensor) -> None:
        """Takes in one micro-batch; never waits.

        Args:
            figures: (3,) float64, loss sum, tokens and non-finite ranks, over all ranks.
            keep: 0-d bool.
            reason: 0-d int64, index into `VERDICT_REASONS`.
        """
        self.counts.add_(torch.stack([self._one, keep & (figures[1] > 0), ~keep]))
        place = self.counts[:1]
        row = torch.cat([place.to(torch.float64), figures, reason.to(torch.float64).reshape(1)])
        # By an index that is a tensor of one element: a 0-d one would be read by the host.
        self._rows.index_copy_(0, place % SIZE, row.reshape(1, _WIDTH))

    def newest(self, num: int) -> torch.Tensor:
        """(num, 5) float64, the newest first: a copy that later micro-batches do not change; never waits.

        Args:
            num: How many, 1 to `SIZE`; where fewer were decided, the last ones are empty.
        """
        return self._rows.index_select(0, (self.counts[0] - self._ages[:num]) % SIZE)


def unheard(values: list[float], *, heard: int) -> list[DecidedMicro]:
    """The micro-batches after place `heard`, oldest first, out of the values of `Decided.newest`, flat.

    If the first of them is not the next one, those between were more than was asked for, or than the device holds.
    """
    num = min(int(values[0]) - heard, len(values) // _WIDTH)
    rows = (values[age * _WIDTH : (age + 1) * _WIDTH] for age in reversed(range(num)))
    return [
        DecidedMicro(int(place), loss_sum, int(num_tokens), int(num_nonfinite), int(reason))
        for place, loss_sum, num_tokens, num_nonfinite, reason in rows
    ]
