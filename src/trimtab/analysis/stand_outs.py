"""Rows that stand out though no step does: in its step a row is diluted by the others.

Enters: a log and its series. Leaves: the rows whose loss is farthest above what is usual around them, as `StandOut`
values for a remark. Invariant: they are no findings. Memory is that of a few steps: the pass that sums the steps has
kept the highest row loss of each, so only steps that hold such a row are read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.rows import StepRows, blocks_with, gather_rows
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.log.reader import Log
from trimtab.log.steps import WEIGHTY_TOKENS
from trimtab.rules.robust import MAD_TO_SIGMA

FACTOR = 3.0
"""Times what is usual from which a row stands out. Of the demo's 2,479 ordinary rows with 16 tokens or more none
reaches 1.4. In three small runs over 400 rows of which one is noise, three or four epochs each, it has 2.8 to 9.7 times
what is usual, and no other row 2."""

SCALES = 5.0
"""Robust scales above the median of the log of (highest row loss of a step / level around) that a row must be besides,
so that in data whose rows differ by nature it is not one of many. Of 24,000 rows made up with losses log-normal by 0.4,
8 a step, 57 are above 3 times the level, and none is this far; by 0.6 it is 797, and none."""

MARGIN = 1.0
"""Loss above what is usual that it must be besides: a model that knows its data by heart has 0.06 beside 0.02."""

NEIGHBOURS = 21
"""Measured finite steps around a step whose median is usual there, its own among them."""

MIN_NEIGHBOURS = 5
"""Of fewer steps nobody can say what is usual."""

MAX_STEPS = 20
"""Steps whose rows are looked up."""

MAX_ROWS = 3
"""Rows given."""

_AT_ONCE = 1 << 16
"""Windows of neighbours held at once; 64 k x 21 x 8 bytes."""


class StandOut(NamedTuple):
    """One row that stands out.

    Attributes:
        row: The row.
        step: Where it does so most.
        loss: Its mean loss there.
        usual: What is usual there: the median of the step losses around, or of the other rows of the step if that is
            higher, as at the beginning of a run, where the loss falls fast.
        num_visits: How often the row occurred with supervised tokens.
        num_out: In how many of those it stood out from the steps around.
    """

    row: int
    step: int
    loss: float
    usual: float
    num_visits: int
    num_out: int


def find_stand_outs(log: Log, *, series: StepSeries) -> list[StandOut]:
    """The rows that stand out most, by their loss over what is usual where they were; none where none does.

    Args:
        log: An opened log.
        series: The run.
    """
    measured = np.flatnonzero(series.measured & is_finite(series.loss))
    if measured.size < MIN_NEIGHBOURS:
        return []
    worst: dict[int, StandOut] = {}
    factor = _factor(series, measured)
    for table, level in _tables(log, series, measured, factor=factor):
        for found in _in_step(table, level, factor=factor):
            known = worst.get(found.row)
            if known is None or _times(found) > _times(known):
                worst[found.row] = found
    most = sorted(worst.values(), key=_times, reverse=True)[:MAX_ROWS]
    return _with_visits(most, log, series=series, measured=measured, factor=factor) if most else []


def _times(found: StandOut) -> float:
    return found.loss / found.usual


def _factor(series: StepSeries, measured: NDArray[np.int64]) -> float:
    """Times what is usual from which a row of this run stands out, by how far the rows of its steps spread."""
    place = measured[series.top_loss[measured] > 0]
    place = place[:: place.size // _AT_ONCE + 1]
    level = _levels(series, measured, place)
    times = np.log(series.top_loss[place][level > 0] / level[level > 0])
    if not times.size:
        return FACTOR
    median = float(np.median(times))
    scale = MAD_TO_SIGMA * float(np.median(np.abs(times - median)))
    return max(FACTOR, math.exp(median + SCALES * scale))


def _tables(
    log: Log, series: StepSeries, measured: NDArray[np.int64], *, factor: float
) -> Iterator[tuple[StepRows, float]]:
    """The steps whose highest row loss is farthest above the steps around, with the level of these."""
    top = series.top_loss
    # No median of neighbours is below the lowest of all losses: most steps are out before theirs is taken.
    place = np.flatnonzero(top > max(factor * float(series.loss[measured].min()), 0.0))
    level = _levels(series, measured, place)
    some = _is_out(top[place], level, factor=factor)
    place, level = place[some], level[some]
    # A step that is high itself has no row that stands out in it: it comes last.
    order = np.argsort(-top[place] / np.fmax(level, series.loss[place]), kind="stable")[:MAX_STEPS]
    by_step = dict(zip(series.step[place[order]].tolist(), level[order].tolist(), strict=True))
    for step, table in gather_rows(log, series=series, steps=by_step).items():
        yield table, by_step[step]


def _in_step(table: StepRows, level: float, *, factor: float) -> Iterator[StandOut]:
    if not table.shares_known:
        return
    num_with_tokens = table.row.size - table.num_empty
    losses = table.loss_sum[:num_with_tokens] / table.tokens[:num_with_tokens]
    for index in np.flatnonzero(_is_out(losses, level, factor=factor)).tolist():
        others = np.delete(losses, index)
        usual = max(level, float(np.median(others))) if others.size else level
        loss = float(losses[index])
        if table.tokens[index] >= WEIGHTY_TOKENS and _is_out(losses[index], usual, factor=factor):
            yield StandOut(int(table.row[index]), table.step, loss, usual, num_visits=0, num_out=0)


def _with_visits(
    most: list[StandOut], log: Log, *, series: StepSeries, measured: NDArray[np.int64], factor: float
) -> list[StandOut]:
    """The same with how often each occurred: one pass over the log."""
    wanted = np.array(sorted(found.row for found in most), np.int64)
    num_visits, num_out = np.zeros(wanted.size, np.int64), np.zeros(wanted.size, np.int64)
    for block in blocks_with(log, wanted):
        block = block.take((block.attempt == series.attempts_of(block.step)) & (block.num_tokens > 0))
        index = np.searchsorted(wanted, block.row)
        level = _levels(series, measured, np.searchsorted(series.step, block.step))
        is_out = _is_out(block.loss_sum / block.num_tokens, level, factor=factor)
        num_visits += np.bincount(index, minlength=wanted.size)
        num_out += np.bincount(index[is_out], minlength=wanted.size)
    at = np.searchsorted(wanted, [found.row for found in most]).tolist()
    return [
        found._replace(num_visits=int(num_visits[i]), num_out=int(num_out[i]))
        for i, found in zip(at, most, strict=True)
    ]


def _levels(series: StepSeries, measured: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) median of the `NEIGHBOURS` measured finite losses around each place (N,); near an end of the run of as many
    at that end.
    """
    width = min(NEIGHBOURS, measured.size)
    losses = series.loss[measured]
    start = np.clip(np.searchsorted(measured, place) - width // 2, 0, measured.size - width)
    windows = np.lib.stride_tricks.sliding_window_view(losses, width)
    parts = [np.median(windows[start[i : i + _AT_ONCE]], axis=1) for i in range(0, place.size, _AT_ONCE)]
    return np.concatenate([np.empty(0), *parts])


def _is_out(loss: NDArray[np.floating], level: NDArray[np.float64] | float, *, factor: float) -> NDArray[np.bool_]:
    """Whether a loss is so far above a level; never where that is not above 0, as the loss of a policy may be."""
    is_out: NDArray[np.bool_] = (level > 0) & (loss > factor * level) & (loss - level >= MARGIN)
    return is_out
