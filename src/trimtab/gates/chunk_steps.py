"""The steps of a chunk as its gates look at them: one pass over the step records beside the series of the run.

Enters: a log, the series of one of its runs, and how attempts ended. Leaves: the chunk, and `ChunkSteps`, parallel
arrays in the order of its steps. Invariant: each step is of the attempt that counts for it. Memory is that of the run's
steps.

Shapes: S steps of the chunk, N step records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.attempts import StepReading
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.errors import LogError
from trimtab.gates.attempts_told import IN_GOOD_ORDER, AttemptsTold
from trimtab.gates.values import Chunk
from trimtab.log.columns import StepColumns
from trimtab.log.reader import Log
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.values import GRADIENTLESS, STEP_CODE

_DETAILS: Final = ("attempt", "rank", "step", "loss", "num_tokens", "reason", "lr", "has_lr", "num_skipped_micros")
"""Columns of the step records that are looked at one by one."""

_QUIET: Final = [STEP_CODE[reason] for reason in GRADIENTLESS]

OWN_FORMATS: Final = ("run", "journal")
"""Logs in which every rank leaves a record of every step, and every attempt is numbered."""


class ChunkSteps(NamedTuple):
    """The steps of a chunk, ascending; each stands once.

    Attributes:
        step: (S,) int64.
        attempt: (S,) int32, the attempt whose records count.
        reason: (S,) uint8 index into `trimtab.values.STEP_REASONS`, or `trimtab.log.steps.UNKNOWN_REASON`.
        loss: (S,) float64, over all micro-batches; NaN where unknown; what the run reported where that is not finite.
        is_loss_known: (S,) bool.
        is_loss_broken: (S,) bool, whether what was trained on had a loss that is not finite, by its rows or as the run
            reported it, auxiliary terms included: what the guard left out of the update is left out here.
        norm: (S,) float64 gradient norm before clipping; NaN where unknown.
        is_norm_known: (S,) bool, also where no gradient counted, so that there was none to measure.
        is_norm_broken: (S,) bool, whether a gradient that counted had a norm that is not finite.
        num_left_out: (S,) int64 micro-batches that the guard kept out, over all ranks.
        is_whole: (S,) bool, whether every rank left a record of it; of another tool's log always.
        lr: (S,) float64 of the lowest rank that tells; NaN where none does.
        has_lr: (S,) bool.
    """

    step: NDArray[np.int64]
    attempt: NDArray[np.int32]
    reason: NDArray[np.uint8]
    loss: NDArray[np.float64]
    is_loss_known: NDArray[np.bool_]
    is_loss_broken: NDArray[np.bool_]
    norm: NDArray[np.float64]
    is_norm_known: NDArray[np.bool_]
    is_norm_broken: NDArray[np.bool_]
    num_left_out: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    lr: NDArray[np.float64]
    has_lr: NDArray[np.bool_]

    @property
    def num_steps(self) -> int:
        """Number of steps (S); `len()` of a named tuple counts its fields instead."""
        return int(self.step.size)

    def has_reason(self, *reasons: str) -> NDArray[np.bool_]:
        """(S,) bool, whether that became of each step."""
        found: NDArray[np.bool_] = np.isin(self.reason, [STEP_CODE[reason] for reason in reasons])
        return found

    @property
    def is_taken(self) -> NDArray[np.bool_]:
        """(S,) bool, whether the optimizer took each step, as far as anybody says what became of it."""
        taken: NDArray[np.bool_] = self.has_reason("stepped") | (self.reason == UNKNOWN_REASON)
        return taken


def without_open_step(log: Log, reading: StepReading) -> StepReading:
    """A run without a last step that was begun and never ended: it has rows, and no record of the step.

    An attempt that recorded nothing else has trained nothing.
    """
    series = reading.series
    if log.format not in OWN_FORMATS or series.num_steps < 2:
        return reading
    if not (series.reason[-1] == UNKNOWN_REASON != series.reason[-2]):
        return reading
    newest, rank_ends = int(series.attempt[-2]), reading.rank_ends
    if newest != reading.newest_attempt:
        rank_ends = {0: int(series.step[-2])}
    return reading._replace(
        series=StepSeries._make(column[:-1] for column in series),
        not_reached=reading.not_reached[:-1],
        newest_attempt=newest,
        rank_ends=rank_ends,
    )


def read_chunk(log: Log, reading: StepReading, *, told: AttemptsTold, since: int | None) -> tuple[Chunk, ChunkSteps]:
    """The steps since a run last stopped in good order, or since a step.

    Args:
        log: The log.
        reading: The run, cut where it is now.
        told: What events tell of its attempts.
        since: The chunk begins with the step after this one; None: where the run last stopped in good order.

    Raises:
        LogError: No step lies after `since`.
    """
    series = reading.series
    records, attempts = _records(log, series)
    if since is None:
        closed = [attempt for attempt in attempts if told.ends.get(attempt) == IN_GOOD_ORDER]
        before = max((attempt for attempt in closed if attempt < reading.newest_attempt), default=0)
        chosen = series.attempt > before
    else:
        chosen = series.step > since
    places = np.flatnonzero(chosen)
    if not places.size:
        raise LogError(
            f"{log.path}: no step after {since} is in the log; it holds steps {series.step[0]} to {series.step[-1]}."
        )
    first, last = int(series.step[places[0]]), int(series.step[places[-1]])
    if since is not None:
        first = since + 1
    elif places[0]:
        first = int(series.step[places[0] - 1]) + 1  # what lies between was lost, and is missing in this chunk
    elif log.format in OWN_FORMATS and (1, first) not in told.resumes:
        first = min(1, first)  # likewise, unless it went on from a checkpoint of a run that another log is of
    num_ranks = log.header.world_size if log.format in OWN_FORMATS else 0
    steps = _steps(series, places, records, num_ranks=num_ranks)
    chunk = Chunk(
        first_step=first,
        last_step=last,
        num_steps=steps.num_steps,
        attempts=tuple(np.unique(steps.attempt).tolist()),
    )
    return chunk, steps


def _records(log: Log, series: StepSeries) -> tuple[dict[str, NDArray[np.generic]], list[int]]:
    """The details of the records that count, by name (N,); and all attempts that have steps, ascending."""
    attempts = set(np.unique(series.attempt).tolist())
    kept: list[StepColumns] = []
    for block in log.step_blocks():
        attempts.update(np.unique(block.attempt).tolist())
        counts = series.attempts_of(block.step) == block.attempt
        kept.append(block if counts.all() else block.take(counts))
    empty = StepColumns.empty()
    details = {
        name: np.concatenate([getattr(empty, name), *(getattr(block, name) for block in kept)]) for name in _DETAILS
    }
    return details, sorted(attempts)


def _steps(
    series: StepSeries, places: NDArray[np.int64], records: Mapping[str, NDArray[np.generic]], *, num_ranks: int
) -> ChunkSteps:
    """The steps at some places of a series, with what their records tell; each should have that of so many ranks."""
    size = series.num_steps
    loss, lr, has_lr = series.loss.copy(), np.full(size, np.nan), np.zeros(size, np.bool_)
    is_infinite, is_told, is_reported_broken = (np.zeros(size, np.bool_) for _ in range(3))
    num_skipped, num_told = np.zeros(size, np.int64), np.zeros(size, np.int64)
    if records["step"].size:
        at = np.searchsorted(series.step, records["step"])
        told = np.flatnonzero(records["has_lr"])
        # The lowest rank comes last, and prevails; of one rank its last record.
        told = told[np.argsort(-records["rank"][told].astype(np.int64), kind="stable")]
        lr[at[told]], has_lr[at[told]] = records["lr"][told], True
        is_infinite[at[np.isinf(records["loss"])]] = True
        is_told[at[np.isfinite(records["loss"])]] = True
        np.add.at(num_skipped, at, records["num_skipped_micros"])
        # NaN over no tokens is no loss, and of a step without a gradient nothing was measured.
        has_loss = (records["num_tokens"] != 0) & ~np.isin(records["reason"], _QUIET)
        broken = np.flatnonzero(has_loss & ~is_finite(records["loss"].astype(np.float64)))
        is_reported_broken[at[broken]] = True
        loss[at[broken]] = records["loss"][broken]
        num_told += np.bincount(np.unique(np.stack((at, records["rank"])), axis=1)[0], minlength=size)

    is_left_out = (series.num_left_out > 0) | (num_skipped > 0)
    # Rows hold the loss of a micro-batch that was left out as well, the records that of what was trained on.
    is_broken = np.where(is_left_out, is_infinite, (series.measured & ~is_finite(series.loss)) | is_reported_broken)
    is_quiet = np.isin(series.reason, _QUIET)
    is_norm_broken = series.has_grad_norm & ~is_finite(series.grad_norm)
    is_overflow = series.reason == STEP_CODE["scaler_overflow"]
    return ChunkSteps(
        step=series.step[places],
        attempt=series.attempt[places],
        reason=series.reason[places],
        loss=loss[places],
        is_loss_known=(np.where(is_left_out, is_told | is_infinite, series.measured) | is_quiet)[places],
        is_loss_broken=is_broken[places],
        norm=series.grad_norm[places],
        is_norm_known=(series.has_grad_norm | is_quiet | is_overflow)[places],
        is_norm_broken=(is_norm_broken & ~is_overflow)[places],
        num_left_out=np.maximum(num_skipped, is_left_out)[places],
        is_whole=(num_told >= num_ranks)[places],
        lr=lr[places],
        has_lr=has_lr[places],
    )
