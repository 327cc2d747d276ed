"""Sums that are added up while they come, so that memory is bounded by what they are sums of, not by what came.

Enters: partial sums, one for each block of a log. Leaves: one sum of all. Invariant: each partial sum is folded a
number of times that grows with the logarithm of what comes, not with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray


class _Sums(Protocol):
    """Parallel arrays, `step` one of them."""

    @property
    def step(self) -> NDArray[Any]: ...


_Partial = TypeVar("_Partial", bound=_Sums)


def folded(parts: Iterable[_Partial], fold: Callable[[list[_Partial]], _Partial], *, limit: int) -> _Partial:
    """Adds up partial sums, in whatever order they come.

    Args:
        parts: The partial sums.
        fold: Makes one of several; of none, an empty one.
        limit: Entries of partial sums that are held before they are folded.
    """
    pending: list[_Partial] = []
    num_pending, most = 0, limit
    for part in parts:
        pending.append(part)
        num_pending += part.step.size
        if num_pending > most:
            pending = [fold(pending)]
            num_pending = pending[0].step.size
            # Folding again before the folded part doubled would cost quadratic time.
            most = max(limit, 2 * num_pending)
    return fold(pending)
