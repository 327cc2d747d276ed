"""Writes a `rewind.jsonl` from a log that holds rows.

    step_sums -> windows of whole steps, attempt by attempt -> rows of all ranks, sorted -> one line a micro-batch

Enters: a source. Leaves: lines, and what the format could not hold. Invariant: what is read back has the same rows,
means and tokens under the same attempt, step and micro-batch; whatever is lost on the way is counted and said. Memory
is a window, and a few numbers a step. The log is read twice.

Shapes: R row records of a window, M micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log.columns import RowColumns
from trimtab.log.foreign.rewind_jsonl.lines import VERSION
from trimtab.log.source import Source
from trimtab.log.steps import step_sums
from trimtab.values import VERDICT_REASONS, RunHeader

WINDOW_RECORDS = 1 << 18
"""Row records sorted at a time, unless one step has more; 20 MB."""

MAX_LINE_ROWS = 100_000
"""Rows in one line, so that it stays below what a reader takes; a larger micro-batch goes on in another line."""

_OFF: Final = VERDICT_REASONS.index("off")
_ONE: Final = {"s": "", "es": "", "are": "is", "stand": "stands", "have": "has"}
_MANY: Final = {"s": "s", "es": "es", "are": "are", "stand": "stand", "have": "have"}


class RewindWritten(NamedTuple):
    """What was written.

    Attributes:
        num_attempts: Stretches that begin with a header line.
        num_micro_batches: Lines of micro-batches.
        num_rows: Row records.
        notices: What the format could not hold.
    """

    num_attempts: int
    num_micro_batches: int
    num_rows: int
    notices: list[str]


def write_rewind(
    source: Source, file: BinaryIO, *, progress: Callable[[str, int, int], None] | None = None
) -> RewindWritten:
    """Writes the rows of a log.

    Args:
        source: The log.
        file: Opened for writing.
        progress: Called now and then with the stage in words, what is done of it, and the whole of it.

    Raises:
        LogError: The log holds no rows, or cannot be read any more.
        OSError: The file cannot be written.
    """
    size_bytes = source.size_bytes

    def count(num_bytes: int) -> None:
        if progress is not None:
            progress("reading the log", num_bytes, size_bytes)

    sums = step_sums(source.row_blocks(brief=True, progress=count))
    if not sums.step.size:
        raise LogError(f"{source.path} holds no rows, and a rewind.jsonl is made of them: nothing was written.")
    lost = _Lost()
    num_micro_batches = num_done = 0
    num_rows = int(sums.num_records.sum())
    attempts = np.unique(sums.attempt).tolist()
    num_ranks = max(1, source.header.world_size)
    for attempt in attempts:
        file.write(_header_line(source.header, num_ranks=num_ranks))
        of_attempt = sums.attempt == attempt
        for first, last in _windows(sums.step[of_attempt], sums.num_records[of_attempt]):
            rows = _window(source, attempt, first, last)
            lost.see(rows)
            for line in _lines(rows):
                file.write(line)
                num_micro_batches += 1
            num_done += rows.num_records
            if progress is not None:
                progress("writing rows", num_done, num_rows)
    return RewindWritten(len(attempts), num_micro_batches, num_rows, lost.notices(source))


def _header_line(header: RunHeader, *, num_ranks: int) -> bytes:
    document = {
        "kind": "header",
        "version": VERSION,
        "backend": header.backend,
        "task": header.task,
        "n_rows": header.num_rows,
        # A line holds the rows of all ranks.
        "batch_size": None if header.batch_size is None else header.batch_size * num_ranks,
        "grad_accum": header.accumulation,
        "dataset_fingerprint": header.dataset_fingerprint,
        "created": header.created,
    }
    return json.dumps(document, allow_nan=False).encode("ascii") + b"\n"


def _windows(step: NDArray[np.int64], num_records: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last step of stretches that each hold a bounded number of records."""
    before = np.cumsum(num_records) - num_records
    begin = 0
    while begin < step.size:
        end = max(begin + 1, int(np.searchsorted(before, before[begin] + WINDOW_RECORDS)))
        yield int(step[begin]), int(step[min(end, step.size) - 1])
        begin = end


def _window(source: Source, attempt: int, first: int, last: int) -> RowColumns:
    """The rows of some steps of one attempt: micro-batch by micro-batch, in each rank by rank as they were recorded."""
    found = []
    for block in source.row_blocks(first_step=first, last_step=last):
        inside = (block.attempt == attempt) & (block.step >= first) & (block.step <= last)
        found.append(block if inside.all() else block.take(inside))
    rows = RowColumns.concat(found)
    # A source gives its ranks one after the other, and the sort keeps that.
    return rows.take(np.lexsort((np.arange(rows.num_records), rows.micro, rows.step)))


def _lines(rows: RowColumns) -> Iterator[bytes]:
    """The lines of a window."""
    begins = np.flatnonzero(_differs(rows.step) | _differs(rows.micro))
    ends = np.append(begins[1:], rows.num_records)
    loss = np.full(rows.num_records, np.nan)  # a row without supervised tokens has no loss: null, and no 0.0
    np.divide(rows.loss_sum, rows.num_tokens, out=loss, where=rows.num_tokens > 0, dtype=np.float64)
    is_finite = np.isfinite(loss)
    all_finite = np.logical_and.reduceat(is_finite, begins)
    row, num_tokens = rows.row.tolist(), rows.num_tokens.tolist()
    means: list[float | None] = [*loss.tolist()]
    for place in np.flatnonzero(~is_finite).tolist():
        means[place] = None
    step, micro = rows.step[begins].tolist(), rows.micro[begins].tolist()
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        head = f'{{"kind": "batch", "step": {step[index]}, "micro": {micro[index]}, "rows": '
        for low in range(begin, end, MAX_LINE_ROWS):
            high = min(low + MAX_LINE_ROWS, end)
            # Python spells lists of whole and of finite numbers as JSON does.
            losses = str(means[low:high]) if all_finite[index] else json.dumps(means[low:high])
            yield f'{head}{row[low:high]}, "row_loss": {losses}, "row_tokens": {num_tokens[low:high]}}}\n'.encode(
                "ascii"
            )


class _Lost:
    """Counts what the format cannot hold."""

    def __init__(self) -> None:
        self._num_infinite = 0
        self._num_verdicts = 0
        self._num_left_out = 0
        self._ranks: set[int] = set()

    def see(self, rows: RowColumns) -> None:
        """Looks through one window."""
        self._num_infinite += int(np.sum(np.isinf(rows.loss_sum) & (rows.num_tokens > 0)))
        self._ranks.update(np.unique(rows.rank).tolist())
        begins = np.flatnonzero(_differs(rows.step) | _differs(rows.micro))  # as lines are counted, not rank by rank
        self._num_verdicts += int(np.sum(np.logical_or.reduceat(rows.reason != _OFF, begins)))
        self._num_left_out += int(np.sum(np.logical_or.reduceat(~rows.keep, begins)))

    def notices(self, source: Source) -> list[str]:
        """One line for each kind of thing."""
        said = []
        if len(self._ranks) > 1:
            said.append(
                f"the rows of {len(self._ranks)} ranks stand in one line a micro-batch, rank by rank: which rank had a "
                "row is not kept"
            )
        counts = (
            (self._num_infinite, "infinite loss{es} {are} null, as NaN is: which of them was infinite is not kept"),
            (self._num_verdicts, "verdict{s} of the guard on micro-batches {are} not kept"),
            (self._num_left_out, "micro-batch{es} that the guard left out of the update {stand} among the others"),
            (source.step_columns().num_records, "step record{s} (loss, gradient norm, learning rate) {are} not kept"),
            (sum(event.kind != "converted" for event in source.event_list()), "event{s} {are} not kept"),
            (source.id_columns().row.size, "row{s} {have} ids (table row, digest, name), which are not kept"),
        )
        return said + [f"{count} {what.format(**_ONE if count == 1 else _MANY)}" for count, what in counts if count]


def _differs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it; the first does."""
    differs = np.ones(values.size, np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs
