"""Sets of flat indices, as the ranges that they make up.

Enters: ascending indices. Leaves: (k, 2) int64 on the CPU, a range in each row as its first index and the one behind
its last. Invariant: ranges are ascending and apart, so that a set is spelled in one way only; no call loops over them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def of_indices(indices: torch.Tensor) -> torch.Tensor:
    """The ranges of (n,) int64 indices, ascending, of any device."""
    is_first = torch.ones_like(indices, dtype=torch.bool)
    is_first[1:] = indices[1:] != indices[:-1] + 1
    is_last = is_first.roll(-1)  # the first of all is one, and so is the last
    return torch.stack([indices[is_first], indices[is_last] + 1], dim=1).cpu()


def union(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The ranges of what is in any of several sets; at least one is given."""
    bounds = torch.cat(list(parts))
    if len(bounds) < 2:
        return bounds
    bounds = bounds[bounds[:, 0].argsort()]
    reached = bounds[:, 1].cummax(0).values
    is_first = torch.ones(len(bounds), dtype=torch.bool)
    is_first[1:] = bounds[1:, 0] > reached[:-1]
    return torch.stack([bounds[is_first, 0], reached[is_first.roll(-1)]], dim=1)


def num_indices(ranges: torch.Tensor) -> int:
    """How many indices are in the ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def difference(ranges: torch.Tensor, without: torch.Tensor) -> tuple[int, int | None]:
    """How many indices are in `ranges` and not in `without`, and the first of them; None where there is none."""
    num_new = ranges[:, 1] - ranges[:, 0] - (_num_below(without, ranges[:, 1]) - _num_below(without, ranges[:, 0]))
    with_new = num_new.nonzero().flatten()
    if not len(with_new):
        return 0, None
    first = ranges[with_new[0], 0]
    place = int(torch.searchsorted(without[:, 0].contiguous(), first, right=True))
    # Behind a range that hides the first ones comes an index that is in none, for they are apart.
    return int(num_new.sum()), max(int(first), int(without[place - 1, 1]) if place else 0)


def are_ranges(found: object, *, most: int) -> bool:
    """Whether a tensor from a stranger's file is such ranges, and not more than so many."""
    if not isinstance(found, torch.Tensor) or found.dtype != torch.int64 or found.layout is not torch.strided:
        return False
    if found.dim() != 2 or found.shape[1] != 2 or len(found) > most:
        return False
    flat = found.reshape(-1)
    return not len(flat) or (int(flat[0]) >= 0 and bool((flat[1:] > flat[:-1]).all()))


def _num_below(ranges: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """For each bound how many indices in the ranges are below it."""
    if not len(ranges):
        return torch.zeros_like(bounds)
    behind = (ranges[:, 1] - ranges[:, 0]).cumsum(0)
    place = torch.searchsorted(ranges[:, 0].contiguous(), bounds.contiguous())
    last = (place - 1).clamp(min=0)
    num_below = behind[last] - (ranges[last, 1] - bounds).clamp(min=0)
    return torch.where(place > 0, num_below, 0)
