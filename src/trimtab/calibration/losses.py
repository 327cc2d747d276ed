"""What a guard would have judged, in the order in which it would have come.

    log -> read_runs (which attempt counts for a step) + micro_sums -> RunLosses, one a run of the file

Enters: an opened log. Leaves: losses with their steps, and the findings of the loss that `rewind` makes of them.
Invariant: of what was trained twice only the attempt that counts is judged; a micro-batch without supervised tokens is
not, because a guard keeps it and remembers nothing.

Shapes: M micro-batches, or steps where the log holds nothing finer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.several_runs import JudgedRun, judge_runs
from trimtab.calibration.values import Unit
from trimtab.findings import Spike
from trimtab.log.micros import MicroSums, micro_sums
from trimtab.log.reader import Log


class RunLosses(NamedTuple):
    """The losses of one run, and what `rewind` finds in them.

    Attributes:
        step: (M,) int64 optimizer steps, ascending.
        loss: (M,) float64 mean losses over supervised tokens, NaN and infinities as recorded.
        spikes: Findings of the loss, the worst first.
        num_spikes_left_out: Findings that are not among them, because `rewind` lists no more.
    """

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    spikes: tuple[Spike, ...]
    num_spikes_left_out: int


class LogLosses(NamedTuple):
    """The losses of a log.

    Attributes:
        unit: What they are losses of.
        runs: The runs of the log, in order; a log holds one unless several were written into one file.
        num_no_tokens: Micro-batches without supervised tokens, or steps without a loss.
        num_unknown: Micro-batches whose losses were not recorded, at least one in each step that lacks some.
        num_left_out: Micro-batches that a guard of the recorded run left out of the update.
        judged: The runs as `rewind` judges them.
    """

    unit: Unit
    runs: tuple[RunLosses, ...]
    num_no_tokens: int
    num_unknown: int
    num_left_out: int
    judged: list[JudgedRun]


def read_losses(log: Log, *, progress: Callable[[int], None] | None = None) -> LogLosses:
    """Reads a log: micro-batches where it holds rows with their losses, else steps.

    Args:
        log: An opened log.
        progress: Called now and then with the bytes read so far, of twice the size of the log: it is read twice.
    """
    judged = judge_runs(read_runs(log, progress=progress), rule="robust")
    if log.has_rows:
        micros = micro_sums(log.row_blocks(progress=_from(log.size_bytes, progress)))
        if np.any(micros.num_tokens > 0):
            return _of_micros(micros, judged)
    return _of_steps(judged)


def _of_micros(micros: MicroSums, judged: list[JudgedRun]) -> LogLosses:
    has_loss = micros.num_tokens > 0
    runs, num_no_tokens, num_unknown, num_left_out = [], 0, 0, 0
    for run in judged:
        series = run.reading.series
        counts = series.attempts_of(micros.step) == micros.attempt
        measured = np.flatnonzero(counts & has_loss)
        by_step = measured[np.argsort(micros.step[measured], kind="stable")]
        loss = micros.loss_sum[by_step] / micros.num_tokens[by_step]
        runs.append(_run_of(run, step=micros.step[by_step], loss=loss))
        lacking, without = series.step[series.is_reported], micros.step[counts & ~has_loss]
        is_unknown = np.isin(without, lacking)
        num_unknown += int(np.count_nonzero(is_unknown)) + np.setdiff1d(lacking, without).size
        num_no_tokens += int(np.count_nonzero(~is_unknown))
        num_left_out += int(np.count_nonzero(micros.left_out[measured]))
    return LogLosses("micro", tuple(runs), num_no_tokens, num_unknown, num_left_out, judged)


def _of_steps(judged: list[JudgedRun]) -> LogLosses:
    runs, num_no_loss = [], 0
    for run in judged:
        series = run.reading.series
        runs.append(_run_of(run, step=series.step[series.measured], loss=series.loss[series.measured]))
        num_no_loss += int(np.count_nonzero(~series.measured))
    return LogLosses("step", tuple(runs), num_no_loss, 0, 0, judged)


def _run_of(run: JudgedRun, *, step: NDArray[np.int64], loss: NDArray[np.float64]) -> RunLosses:
    spikes = tuple(spike for spike in run.search.spikes if spike.signal == "loss")
    return RunLosses(step, loss, spikes, run.search.num_left_out)


def _from(done: int, progress: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """Progress in the second pass over a log as progress in both."""
    return None if progress is None else lambda num_bytes: progress(done + num_bytes)
