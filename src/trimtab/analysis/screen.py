"""Which values are worth judging: bounds over whole arrays, so that a rule object sees a few of a million values.

Enters: the finite values of a signal, oldest first, as float32 values held in float64. Leaves: places of candidates.
Invariant: whatever a rule would flag is among them. The bounds are loosened by far more than float64 rounds, and what
passes is judged by the rule itself, so a screen decides nothing.

Shapes: N values, C candidates.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.rules.robust import ABSOLUTE_FLOOR, MAD_TO_SIGMA, RELATIVE_FLOOR

SLACK = 1e-9
"""Relative loosening of every bound; float64 rounds at 1e-16."""

GROUP = 20
"""Neighbours that share one bound: their windows of 100 have 81 values in common."""

CHUNK = 1 << 14
"""Windows looked at together: 16 k x 100 values are 13 MB."""


def robust_candidates(values: NDArray[np.float64], *, k: float, window_size: int) -> NDArray[np.int64]:
    """Places that may exceed median + k scales of the full window before them.

    Args:
        values: (N,) finite values.
        k: How many scales above the median are still normal; below 50, so that the bound falls as the median rises.
        window_size: Values a full window holds.

    Returns:
        (C,) ascending places, all at `window_size` or later: before, the window is not full.
    """
    places = _above_bound(values, window_size=window_size, k=k)
    return _above_median(values, places, window_size=window_size, k=k, factor=None)


def norm_candidates(values: NDArray[np.float64], *, k: float, factor: float, window_size: int) -> NDArray[np.int64]:
    """As `robust_candidates`, for values that must also exceed `factor` medians."""
    places = _above_bound(values, window_size=window_size, k=k)
    return _above_median(values, places, window_size=window_size, k=k, factor=factor)


def median_candidates(values: NDArray[np.float64], *, multiplier: float, window_size: int) -> NDArray[np.int64]:
    """Places that may exceed `multiplier` medians of the full window before them; as above otherwise."""
    places = np.arange(window_size, values.size)
    return _above_median(values, places, window_size=window_size, k=None, factor=multiplier)


def mean_candidates(values: NDArray[np.float64], *, multiplier: float, window_size: int) -> NDArray[np.int64]:
    """Places that may exceed `multiplier` means of the full window before them; as above otherwise."""
    passed = [np.empty(0, np.int64)]
    windows = sliding_window_view(values, window_size) if values.size > window_size else None
    for start in range(window_size, values.size, CHUNK):
        assert windows is not None
        x = values[start : start + CHUNK]
        window = windows[start - window_size : start - window_size + x.size]
        mean, size = window.mean(axis=1), np.abs(window).mean(axis=1)
        passed.append(start + np.flatnonzero(x - multiplier * mean > -SLACK * (np.abs(x) + multiplier * size)))
    return np.concatenate(passed)


def _above_bound(values: NDArray[np.float64], *, window_size: int, k: float) -> NDArray[np.int64]:
    """Places that exceed the robust threshold of the smallest median their window can have.

    GROUP neighbours share a core: the values that all their windows hold. A window is the core and GROUP - 1 others;
    even if all of these were smaller, the lower middle value of the window is the core's value GROUP - 1 places further
    down. With the smallest scale a median allows, the threshold rises with the median: a value below it at this bound
    is below it at the true one.
    """
    core_size = window_size - GROUP + 1
    num_groups = max(0, (values.size - window_size) // GROUP)
    # The group's first value stands `window_size` after the start of its window; the core starts GROUP - 1 later.
    cores = sliding_window_view(values, core_size)[GROUP - 1 :: GROUP][:num_groups] if num_groups else None
    lower_middle = (window_size - 1) // 2 - (GROUP - 1)
    bounds = np.empty(num_groups)
    for start in range(0, num_groups, CHUNK):
        assert cores is not None
        bounds[start : start + CHUNK] = np.partition(cores[start : start + CHUNK], lower_middle, axis=1)[
            :, lower_middle
        ]

    grouped_end = window_size + num_groups * GROUP
    grouped = values[window_size:grouped_end].reshape(num_groups, GROUP)
    passed = np.flatnonzero(_may_exceed(grouped, bounds[:, None], scale=_smallest_scale(bounds)[:, None], k=k))
    # The rest does not fill a group.
    return np.concatenate([passed + window_size, np.arange(max(window_size, grouped_end), values.size)])


def _above_median(
    values: NDArray[np.float64], places: NDArray[np.int64], *, window_size: int, k: float | None, factor: float | None
) -> NDArray[np.int64]:
    """Those of `places` that exceed the thresholds of their window's true median and deviation."""
    passed = [np.empty(0, np.int64)]
    half = window_size // 2
    windows = sliding_window_view(values, window_size) if places.size else None
    for start in range(0, places.size, CHUNK):
        assert windows is not None
        some = places[start : start + CHUNK]
        x, window = values[some], windows[some - window_size]
        median = _middle(window, half)
        above = np.ones(some.size, np.bool_)
        if factor is not None:
            above &= x - factor * median > -SLACK * (np.abs(x) + np.abs(median))
        if k is not None:
            some, x, window, median = some[above], x[above], window[above], median[above]
            deviation = _middle(np.abs(window - median[:, None]), half)
            above = _may_exceed(x, median, scale=np.maximum(MAD_TO_SIGMA * deviation, _smallest_scale(median)), k=k)
        passed.append(some[above])
    return np.concatenate(passed)


def _middle(windows: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """Median of each row; of an even number of values, the mean of the two middle ones."""
    if windows.shape[1] % 2:
        return np.partition(windows, half, axis=1)[:, half]
    ordered = np.partition(windows, (half - 1, half), axis=1)
    return (ordered[:, half - 1] + ordered[:, half]) / 2


def _smallest_scale(median: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(RELATIVE_FLOOR * np.abs(median), ABSOLUTE_FLOOR)


def _may_exceed(
    x: NDArray[np.float64], median: NDArray[np.float64], *, scale: NDArray[np.float64], k: float
) -> NDArray[np.bool_]:
    return x - median - k * scale > -SLACK * (np.abs(x) + np.abs(median) + k * scale)
