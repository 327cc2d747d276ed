"""The steps of a log as the rules of health see them.

Enters: step records, the series of a run, the throughput that another tool logged. Leaves: `ObservedStep`s, ascending,
those of the attempt that counts. Invariant: the numbers are those that a watch saw while it trained: of the lowest
rank, as the run reported them. Memory is that of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.series import StepSeries
from trimtab.log.columns import SideColumns, StepColumns
from trimtab.log.reader import Log
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.rules.health import ObservedStep
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import GRADIENTLESS, STEP_REASONS
from trimtab.watched import WATCH_EVENT

_AT_ONCE: Final = 1 << 14
"""Steps that are Python numbers at a time."""

_REASONS: Final = (*STEP_REASONS, "stepped")
"""By code; what became of a step that no record tells of is taken for the usual."""


_STEPPED: Final = STEP_REASONS.index("stepped")

_SLOW: Final = 0.5
_NUM_SLOW: Final = 5
_PER_SHARE: Final = 100
_SHARE_RISE: Final = 0.15
"""The screen's bounds, each wider than what a rule warns of by default: a third of the usual pace in ten steps in a
row, and a rise of the clipped share by half between 1,200 steps. Of a stricter watch no step is screened."""

_SCREENED: Final = 20_000
"""Steps from which the screen is worth its bounds: so many are judged in 0.3 seconds."""


class HealthSteps:
    """The step records of a log, those of its lowest rank; read when they are asked for.

    Args:
        log: The log.

    Attributes:
        is_quiet: Whether no rule could find anything in them: they matter beside evaluations and reports only, by their
            losses and rates.

    Raises:
        LogError: The log cannot be read any more.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._records: StepColumns | None = None
        self._num_records = 0
        quiet = is_quiet(self._counted(), tokens_per_s=log.side_columns().tokens_per_s)
        self.is_quiet = quiet and self._num_records > _SCREENED and not _has_strict_watch(log)

    def of_run(self, series: StepSeries, *, side: SideColumns) -> Iterator[ObservedStep]:
        """The steps of one run that count, ascending, each once; of quiet ones without what no rule needs.

        Args:
            series: The run.
            side: What the log holds beside its steps.
        """
        if self._records is None:
            records = self._log.step_columns()
            is_lowest = records.rank == records.rank.min(initial=np.iinfo(np.int32).max)
            self._records = records if is_lowest.all() else records.take(is_lowest)
        records = self._records
        if not series.num_steps or not records.num_records:
            return
        counts = np.flatnonzero(series.attempts_of(records.step) == records.attempt)
        order = counts[np.argsort(records.step[counts], kind="stable")]
        steps = records.step[order]
        # Of a step that was recorded twice the last counts.
        order = order[np.append(steps[1:] != steps[:-1], True)] if order.size else order
        rates = _rates(series, side)
        for begin in range(0, order.size, _AT_ONCE):
            chunk = records.take(order[begin : begin + _AT_ONCE])
            yield from _losses(chunk) if self.is_quiet else _observed(chunk, rates=rates)

    def _counted(self) -> Iterator[StepColumns]:
        for block in self._log.step_blocks():
            self._num_records += block.num_records
            yield block


def _has_strict_watch(log: Log) -> bool:
    """Whether a watch of this log warned of less than the screen sees. Whatever a loss scale does is seen."""
    usual = WatchConfig()
    configs = (WatchConfig.from_facts(event.facts)[0] for event, _, _ in log.event_stream((WATCH_EVENT,)))
    return any(
        config.throughput_patience < usual.throughput_patience
        or config.throughput_fraction > usual.throughput_fraction
        or config.clip_fraction_rise < usual.clip_fraction_rise
        for config in configs
    )


def is_quiet(blocks: Iterable[StepColumns], *, tokens_per_s: NDArray[np.float64]) -> bool:
    """Whether no rule of health can find anything in these steps by default; a screen, as for spikes.

    A million steps take 15 seconds to judge, and most runs hold nothing that any of the rules looks for.

    Args:
        blocks: The steps, in the order recorded.
        tokens_per_s: (M,) paces that stand beside them.
    """
    has_broken = has_loss = has_gap = False
    first_scale: float | None = None
    paces, clipped = [], []
    for block in blocks:
        norms = block.grad_norm[block.has_grad_norm]
        has_broken |= bool(np.isinf(block.loss).any()) or not np.isfinite(norms).all()
        is_known = np.isfinite(block.loss)
        has_loss |= bool(is_known.any())
        has_gap |= not is_known.all()
        is_stale = (block.reason != _STEPPED) & (block.reason != UNKNOWN_REASON) & block.has_grad_norm
        scales = block.loss_scale[block.loss_scale > 0]
        first_scale = float(scales[0]) if first_scale is None and scales.size else first_scale
        if is_stale.any() or has_broken or (has_loss and has_gap) or (scales != first_scale).any():
            return False
        with np.errstate(divide="ignore", invalid="ignore"):
            paces.append((block.num_tokens / block.wall_s).astype(np.float32))
        clipped.append(block.clipped[block.clipped >= 0])
    return not (
        _slows_down(np.concatenate([np.empty(0, np.float32), *paces]))
        or _slows_down(tokens_per_s)
        or _is_clipped_more(np.concatenate([np.empty(0, np.int8), *clipped]))
    )


def _slows_down(given: NDArray[np.floating]) -> bool:
    """Whether so many paces in a row as are no pause are below half of the highest: no median is above that."""
    paces = given[(given > 0) & np.isfinite(given)]
    is_slow = paces < _SLOW * paces.max(initial=0.0)
    lengths = np.diff(np.flatnonzero(np.concatenate([[True], ~is_slow, [True]]))) - 1
    return bool((lengths >= _NUM_SLOW).any())


def _is_clipped_more(clipped: NDArray[np.int8]) -> bool:
    """Whether the share of clipped steps differs by much anywhere between 100 steps and others."""
    size = clipped.size // _PER_SHARE * _PER_SHARE
    shares = clipped[:size].reshape(-1, _PER_SHARE).mean(axis=1)
    return bool(shares.size) and bool(shares.max() - shares.min() >= _SHARE_RISE)


def _losses(records: StepColumns) -> Iterator[ObservedStep]:
    """Steps without what only a rule that has nothing to find would look at."""
    columns = (records.step, records.loss, records.lr, records.has_lr, records.reason)
    for step, loss, lr, has_lr, code in zip(*(column.tolist() for column in columns), strict=True):
        yield ObservedStep(
            step=step, loss=loss, lr=lr if has_lr else None, reason=_REASONS[min(code, len(STEP_REASONS))]
        )


def _observed(records: StepColumns, *, rates: tuple[NDArray[np.int64], NDArray[np.float64]]) -> Iterator[ObservedStep]:
    steps, per_s = rates
    paces = np.full(records.step.size, np.nan)
    if steps.size:
        place = np.minimum(np.searchsorted(steps, records.step), steps.size - 1)
        paces = np.where((steps[place] == records.step) & (per_s[place] > 0), per_s[place], np.nan)
    columns = zip(
        records.step.tolist(),
        records.loss.tolist(),
        records.grad_norm.tolist(),
        records.has_grad_norm.tolist(),
        records.clipped.tolist(),
        records.lr.tolist(),
        records.has_lr.tolist(),
        records.loss_scale.tolist(),
        records.wall_s.tolist(),
        records.num_tokens.tolist(),
        records.reason.tolist(),
        paces.tolist(),
        strict=True,
    )
    for step, loss, norm, has_norm, clipped, lr, has_lr, scale, seconds, tokens, code, pace in columns:
        reason = _REASONS[min(code, len(STEP_REASONS))]
        has_gradient = reason not in GRADIENTLESS
        yield ObservedStep(
            step=step,
            loss=loss,
            grad_norm=norm if has_norm and has_gradient else None,
            clipped=bool(clipped) if clipped >= 0 and has_gradient else None,
            lr=lr if has_lr else None,
            loss_scale=scale if scale == scale else None,
            wall_s=seconds,
            num_tokens=tokens,
            reason=reason,
            tokens_per_s=pace if pace == pace else None,
        )


def _rates(series: StepSeries, side: SideColumns) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps, ascending, and tokens a second, (N,) each, of what counts."""
    counts = np.flatnonzero(np.isfinite(side.tokens_per_s))
    if counts.size:
        counts = counts[series.attempts_of(side.step[counts]) == side.attempt[counts]]
    order = counts[np.argsort(side.step[counts], kind="stable")]
    return side.step[order], side.tokens_per_s[order]
