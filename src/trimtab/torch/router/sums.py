"""Sums over the tokens that routers saw: they stay on the device, and nothing here waits for it.

Enters: logits and chosen experts of several layers at once. Leaves: `LayerSums` of all layers of one device and number
of experts, from which every figure of a report is made. Invariant: a padded token, NaN or not, adds to nothing; counts
are whole numbers whatever the logits are; a NaN at a real token makes the layer's sums NaN until they are taken.

    z = lse^2, lse = logsumexp(x), entropy = -sum_i p_i ln p_i, spread = max_i x_i - min_i x_i, p = softmax(x)

A router may forbid an expert by -inf, which is then no part of a spread. Of k the square is summed too: k differed
between tokens where its variance is not 0.

All of a token's figures come of one pass over its logits in float32, the experts before the tokens: on a CPU a
reduction over the last dimension, of some eight experts, takes ten times as long.

Shapes: L layers of one call, R layers of a `LayerSums`, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

NUM_FIGURES: Final = 6
"""Sums before those of P: z, lse, entropy, spread, k squared, tokens."""

_LEAST_DIFFERENCE: Final = -1e30
"""In place of -inf: exp gives 0 of both, and 0 times it is 0 and not NaN."""


class LayerSums:
    """What the layers of one device and number of experts add up to since they were last taken.

    Attributes:
        num_experts: E.
        device: Where the sums are.
    """

    def __init__(self, *, num_experts: int, device: torch.device) -> None:
        """Holds no layer yet."""
        self.num_experts = num_experts
        self.device = device
        # A sum over a million tokens needs float64; Apple's GPUs have none.
        self._wide = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(0, NUM_FIGURES + num_experts, dtype=self._wide, device=device)
        # One place before the experts and one behind them, for what is none of them: an index out of range would end
        # the process on a GPU.
        self._counts = torch.zeros(0, num_experts + 2, dtype=torch.int64, device=device)
        self._one = torch.ones((), dtype=torch.int64, device=device)
        self._places: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def add_layer(self) -> int:
        """Makes room for one more layer; gives its row."""
        row = self._sums.shape[0]
        self._sums = torch.cat([self._sums, self._sums.new_zeros(1, self._sums.shape[1])])
        self._counts = torch.cat([self._counts, self._counts.new_zeros(1, self._counts.shape[1])])
        return row

    def add(
        self,
        rows: tuple[int, ...],
        logits: Sequence[torch.Tensor],
        *,
        indices: Sequence[torch.Tensor] | None,
        top_k: int | None,
        mask: torch.Tensor | None,
    ) -> None:
        """Adds the tokens of L layers.

        Args:
            rows: (L,) whose they are, no two the same.
            logits: L of (T, E), one dtype, without a graph; before softmax.
            indices: L of (T, k), the experts chosen; None: the top_k largest logits.
            top_k: Experts a token is sent to; None, without indices: nothing is counted.
            mask: (T,) bool, which tokens are real; None: all.
        """
        x = torch.stack([layer.T for layer in logits]).float()
        # Before the figures and not behind them: NaN times 0 is NaN.
        x = x if mask is None else x.masked_fill_(~mask, 0.0)
        high = x.amax(1)
        below = x.sub_(high[:, None]).clamp_(min=_LEAST_DIFFERENCE)
        p = below.exp()
        spread = -below.masked_fill_(below <= _LEAST_DIFFERENCE, 0.0).amin(1)  # p is 0 there: the entropy is as before
        total = p.sum(1)
        log_total = total.log()
        lse = high + log_total
        entropy = log_total - below.mul_(p).sum(1) / total
        p /= total[:, None]
        choices = (top_k or 0) if indices is None else indices[0].shape[1]
        squared = torch.full_like(lse, float(choices * choices))
        figures = torch.stack([lse * lse, lse, entropy, spread, squared, torch.ones_like(lse)], 1)
        if mask is not None:
            real = mask.to(p.dtype)
            figures *= real
            p *= real
        added = torch.cat([figures.sum(2), p.sum(2)], 1).to(self._wide)

        where, offsets = self._places_of(rows)
        self._sums.index_add_(0, where, added)
        self._count(logits, indices=indices, top_k=top_k, mask=mask, offsets=offsets)

    def taken(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums (R, 6 + E) and counts (R, E + 2), in float64; both begin again at 0.

        They are new tensors on the device, or on the CPU where it has no float64.
        """
        own = (self._sums, self._counts)
        sums, counts = (
            (part.cpu() if self._wide == torch.float32 else part).to(torch.float64, copy=True) for part in own
        )
        for part in own:
            part.zero_()
        return sums, counts

    def _count(
        self,
        logits: Sequence[torch.Tensor],
        *,
        indices: Sequence[torch.Tensor] | None,
        top_k: int | None,
        mask: torch.Tensor | None,
        offsets: torch.Tensor,
    ) -> None:
        if indices is not None:
            chosen = torch.stack(list(indices)).long()
        elif top_k is not None:
            # As the router itself would, in its own dtype and order of experts: among equal logits the same are chosen.
            chosen = torch.stack([layer.topk(top_k, -1).indices for layer in logits])
        else:
            return
        places = (chosen.clamp(-1, self.num_experts) + offsets).flatten()
        added = self._one if mask is None else mask.to(torch.int64)[:, None]
        self._counts.view(-1).scatter_add_(0, places, added.expand(chosen.shape).reshape(-1))

    def _places_of(self, rows: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows as an index, and where the first expert of each is counted; made once for the same rows."""
        if rows not in self._places:
            where = torch.tensor(rows).to(self.device, non_blocking=True)
            self._places[rows] = where, (where * (self.num_experts + 2) + 1)[:, None, None]
        return self._places[rows]
