"""Steps of a log become one series a run: of what was trained twice, the later attempt counts.

    log.steps.step_sums, step_lines -> runs of their own -> superseded attempts left out -> StepSeries

Invariant: each step of the result comes from exactly one attempt, the last one that reached it: whose first step is
not after it, and whose last is not before it. So an attempt that has only just begun hides nothing further on: not the
spike that it was started for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.series import StepSeries
from trimtab.log.columns import StepColumns
from trimtab.log.reader import Log
from trimtab.log.steps import StepLines, step_lines, step_sums


class StepReading(NamedTuple):
    """What one pass over a log gives of one run.

    Attributes:
        series: The steps that count.
        num_superseded: Steps left out because a later attempt of the run went over them again.
        first_superseded: First of them; None if there are none.
        last_superseded: Last of them; None likewise.
        newest_attempt: The last attempt of the run; 0 for a log without steps.
        not_reached: (N,) bool, parallel to the series: steps of an older attempt behind the last of the newest.
        rank_ends: The last step that each rank recorded in the newest attempt, by rank; none without step records.
        ranks_gone: Ranks that recorded steps in an older attempt, and none in the newest.
    """

    series: StepSeries
    num_superseded: int
    first_superseded: int | None
    last_superseded: int | None
    newest_attempt: int
    not_reached: NDArray[np.bool_]
    rank_ends: dict[int, int]
    ranks_gone: tuple[int, ...]


def read_runs(log: Log, *, progress: Callable[[int], None] | None = None) -> tuple[StepReading, ...]:
    """Reads every row record and step record once and reduces them to steps.

    Args:
        log: An opened log.
        progress: Called now and then with the bytes read so far.

    Returns:
        For each run in the log, in its order, the series and what was left out of it. One run for a log in which none
        began anew; its series is empty for a log without steps.
    """
    records = log.step_columns(brief=True)
    lines = step_lines(step_sums(log.row_blocks(brief=True, progress=progress)), records)
    # Lines ascend by attempt.
    edges = np.searchsorted(lines.attempt, np.array(log.restarts(), np.int32)).tolist()
    bounds = zip([0, *edges], [*edges, lines.step.size], strict=True)
    parts = [StepLines._make(column[begin:end] for column in lines) for begin, end in bounds if begin < end]
    return tuple(_reading(run, records) for run in parts or [lines])


def up_to_now(reading: StepReading) -> StepReading:
    """A run without the steps behind the last of its newest attempt: they lie on a way that it was taken back from."""
    if not reading.not_reached.any():
        return reading
    kept = ~reading.not_reached
    return reading._replace(
        series=StepSeries._make(column[kept] for column in reading.series),
        not_reached=np.zeros(int(np.count_nonzero(kept)), np.bool_),
    )


def _reading(lines: StepLines, records: StepColumns) -> StepReading:
    """The series of one run; the records are those of the whole log."""
    kept = _not_superseded(lines)
    order: NDArray[np.int64] | slice = slice(None)
    # Most logs are in order: then their columns are taken over as they are, which saves a copy of each.
    if not np.all(kept) or np.any(lines.step[1:] < lines.step[:-1]):
        order = np.flatnonzero(kept)[np.argsort(lines.step[kept], kind="stable")]
    gone = lines.step[~kept]
    step, attempt = lines.step[order], lines.attempt[order]
    # Lines ascend by attempt, and by step inside one.
    first, newest = (int(lines.attempt[0]), int(lines.attempt[-1])) if lines.step.size else (0, 0)
    rank_ends = _rank_ends(records, attempt=newest)
    ranks = np.unique(records.rank[(records.attempt >= first) & (records.attempt <= newest)]).tolist()
    return StepReading(
        series=StepSeries(
            step=step,
            attempt=attempt,
            loss=lines.loss[order],
            tokens=lines.num_tokens[order],
            measured=lines.has_loss[order],
            grad_norm=lines.grad_norm[order],
            has_grad_norm=lines.has_grad_norm[order],
            reason=lines.reason[order],
            num_records=lines.num_records[order],
            num_empty=lines.num_empty[order],
            num_left_out=lines.num_left_out[order],
            top_loss=lines.top_loss[order],
            is_reported=lines.is_reported[order],
            differs=lines.differs[order],
        ),
        num_superseded=gone.size,
        first_superseded=int(gone.min()) if gone.size else None,
        last_superseded=int(gone.max()) if gone.size else None,
        newest_attempt=newest,
        not_reached=(attempt != newest) & (step > lines.step[-1:]),
        rank_ends=rank_ends,
        ranks_gone=tuple(rank for rank in ranks if rank not in rank_ends) if rank_ends else (),
    )


def _rank_ends(records: StepColumns, *, attempt: int) -> dict[int, int]:
    """The last step that each rank recorded in an attempt."""
    of_attempt = records.attempt == attempt
    ranks, place = np.unique(records.rank[of_attempt], return_inverse=True)
    last = np.full(ranks.size, np.iinfo(np.int64).min)
    np.maximum.at(last, place, records.step[of_attempt])
    return dict(zip(ranks.tolist(), last.tolist(), strict=True))


def _not_superseded(lines: StepLines) -> NDArray[np.bool_]:
    """Marks the lines of the last attempt that reached their step."""
    starts = np.flatnonzero(np.diff(lines.attempt, prepend=lines.attempt[:1] - 1))
    if starts.size < 2:
        return np.ones(lines.step.size, np.bool_)
    # Places among the distinct steps instead of the steps: these go up to the largest integer there is.
    steps, place = np.unique(lines.step, return_inverse=True)
    ends = np.append(starts[1:], lines.step.size)
    owner = _last_to_reach(place[starts].tolist(), (place[ends - 1] + 1).tolist(), num_places=steps.size)
    own = np.repeat(np.arange(starts.size), ends - starts)
    kept: NDArray[np.bool_] = owner[place] == own
    return kept


def _last_to_reach(firsts: list[int], ends: list[int], *, num_places: int) -> NDArray[np.int64]:
    """For each place the last of the stretches [first, end) that holds it; -1 where none does.

    One sweep over the stretches in the order of their first place, with those under way in a heap: a run can have
    65,535 attempts.
    """
    edges = sorted({*firsts, *ends})
    by_first = sorted(range(len(firsts)), key=firsts.__getitem__, reverse=True)
    under_way: list[int] = []
    owners = []
    for edge in edges:
        while by_first and firsts[by_first[-1]] == edge:
            heapq.heappush(under_way, -by_first.pop())
        while under_way and ends[-under_way[0]] <= edge:
            heapq.heappop(under_way)
        owners.append(-under_way[0] if under_way else -1)
    whole = np.full(num_places, -1, np.int64)
    whole[edges[0] : edges[-1]] = np.repeat(np.array(owners[:-1], np.int64), np.diff(edges))
    return whole
