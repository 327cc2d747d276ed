"""Writes the log of another tool as run folders of our own.

    Source -> attempts, run by run -> blocks -> a journal in a draft of the run folder -> renamed

Enters: a source without ranks. Leaves: a run folder for each run in it, and what a run folder could not hold.
Invariant: a folder appears whole or not at all, and none that exists is touched. Memory is a few blocks, and the step
records. An event `converted` closes each run: it ends nothing, and says why there is no mark of an end.

Shapes: R row records, M micro-batches.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log.blocks import MicroColumns, encode_rows, encode_steps
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.folder import RUNS_NAME, RunFolder, create_run, run_path
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.records import event_blocks
from trimtab.log.source import Source
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.values import STEP_REASONS, Event, RunHeader

BLOCK_RECORDS: Final = 1 << 15
"""Row records, or steps, in one block: 4,000 micro-batches of 8, so that a few steps can be read without the rest."""

_STEPPED: Final = STEP_REASONS.index("stepped")


class RunsWritten(NamedTuple):
    """What was written.

    Attributes:
        paths: The run folders, in the order of the runs in the log.
        num_attempts: Attempts of all of them.
        num_micro_batches: Micro-batches.
        num_rows: Row records.
        num_steps: Step records.
        num_events: Events.
        notices: What a run folder could not hold.
    """

    paths: tuple[str, ...]
    num_attempts: int
    num_micro_batches: int
    num_rows: int
    num_steps: int
    num_events: int
    notices: list[str]


def copy_to_runs(
    source: Source,
    out: Path,
    *,
    version: str,
    progress: Callable[[str, int, int], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> RunsWritten:
    """Writes each run of a log into a run folder of its own, `<out>/trimtab/<run_id>/`.

    Args:
        source: The log of another tool.
        out: The output folder; it exists.
        version: Trimtab's own, for the header.
        progress: Called now and then with the stage in words, what is done of it, and the whole of it.
        clock: Seconds since the epoch.

    Raises:
        LogError: The log holds neither rows nor steps, or cannot be read any more.
        UsageError: It holds more attempts than a run can have.
        OSError: A folder cannot be written.
    """
    draft = Path(tempfile.mkdtemp(dir=out, prefix=".trimtab-convert-"))
    try:
        copy = _Copy(source, draft, out, version, clock())
        try:
            written = copy.write(progress)
        finally:
            copy.close()
        (out / RUNS_NAME).mkdir(exist_ok=True)
        for path in written.paths:
            Path(draft, RUNS_NAME, Path(path).name).rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return written


class _Copy:
    """One copy under way."""

    def __init__(self, source: Source, draft: Path, out: Path, version: str, now: float) -> None:
        self._now = now
        self._source = source
        self._draft = draft
        self._out = out
        self._header = replace(source.header, run_id=None, out=os.path.abspath(out), trimtab_version=version)
        self._runs: list[RunFolder] = []
        self._begins: NDArray[np.int64] = np.empty(0, np.int64)  # the first attempt of each run
        self._known: set[int] = set()
        self._attempt: int | None = None
        self._journal: JournalWriter | None = None
        self._num_rounded_up = 0

    def write(self, progress: Callable[[str, int, int], None] | None) -> RunsWritten:
        source, size_bytes = self._source, self._source.size_bytes

        def count(num_bytes: int) -> None:
            if progress is not None:
                progress("copying the log", num_bytes, size_bytes)

        # What runs there are is known once the log was read; a source keeps what it has decoded for the next pass.
        for _ in source.row_blocks(progress=count):
            pass
        self._begins = np.array([1, *source.restarts()])
        num_rows = num_micro_batches = 0
        newest = None
        for rows in source.row_blocks(progress=count):
            for attempt, part in _by_attempt(rows):
                for columns in _micro_columns(part):
                    self._append(attempt, encode_rows(columns))
                    goes_on = newest == (attempt, int(columns.step[0]), int(columns.micro[0]))
                    num_micro_batches += columns.step.size - goes_on
                    newest = attempt, int(columns.step[-1]), int(columns.micro[-1])
            num_rows += rows.num_records
            self._num_rounded_up += _num_rounded_up(rows)
        steps = source.step_columns()
        for attempt in np.unique(steps.attempt).tolist():
            of_attempt = steps.take(steps.attempt == attempt)
            for low in range(0, of_attempt.num_records, BLOCK_RECORDS):
                some = of_attempt.take(np.arange(low, min(low + BLOCK_RECORDS, of_attempt.num_records)))
                self._append(attempt, encode_steps(_known_reasons(some)))
        if not self._known:
            raise LogError(f"{source.path} holds neither rows nor steps: nothing was written.")
        num_events, lost = self._write_events()
        self._close_runs()
        return RunsWritten(
            paths=tuple(str(run_path(self._out, run.path.name)) for run in self._runs),
            num_attempts=len(self._known),
            num_micro_batches=num_micro_batches,
            num_rows=num_rows,
            num_steps=steps.num_records,
            num_events=num_events,
            notices=[*self._on_runs(), *lost, *self._on_losses(steps, num_rows)],
        )

    def close(self) -> None:
        """Closes the journal that is open."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _append(self, attempt: int, block: Block) -> None:
        if attempt != self._attempt or self._journal is None:
            self._open(attempt)
        assert self._journal is not None
        self._journal.append(block)

    def _open(self, attempt: int) -> None:
        """Goes on in the journal of an attempt, which is that of its run."""
        self.close()
        index = self._run_index(attempt)
        while len(self._runs) <= index:
            self._runs.append(create_run(self._draft, self._header_of(len(self._runs))))
        run = self._runs[index]
        self._journal = JournalWriter(
            run.path / journal_name(0), attempt=attempt - int(self._begins[index]) + 1, rank=0
        )
        self._attempt = attempt
        if attempt not in self._known:
            self._known.add(attempt)
            self._journal.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(run.header)]))

    def _write_events(self) -> tuple[int, list[str]]:
        """Writes the events behind everything else; how many, and why some were not."""
        events = self._source.event_list()
        if not events:
            return 0, []
        if len(self._runs) > 1:
            return 0, [f"{_are(len(events), 'event')} left out: of which of the {len(self._runs)} runs is not known"]
        blocks, refused = event_blocks(events)
        for block in blocks:
            self._append(max(self._known), block)
        return len(events) - len(refused), [f"{_are(len(refused), 'event')} left out: {refused[0]}"] if refused else []

    def _close_runs(self) -> None:
        """Writes behind each run that it was converted."""
        mark = Event("converted", 0, self._now, {"source": self._source.path})
        for last in {self._run_index(attempt): attempt for attempt in sorted(self._known)}.values():
            for block in event_blocks([mark])[0]:
                self._append(last, block)

    def _header_of(self, index: int) -> RunHeader:
        """The header of a run; a source knows that of its first, and one with rows begins another by other data."""
        if index == 0 or not self._source.has_rows:
            return self._header
        return replace(self._header, num_rows=None, dataset_fingerprint=None, created=0.0)

    def _run_index(self, attempt: int) -> int:
        return int(np.searchsorted(self._begins, attempt, side="right")) - 1

    def _on_runs(self) -> list[str]:
        if len(self._runs) == 1:
            return []
        said = [f"the log holds {len(self._runs)} runs: each has a run folder of its own"]
        if self._source.has_rows:
            said.append("of the dataset of every run but the first nothing is kept: its fingerprint is not known")
        return said

    def _on_losses(self, steps: StepColumns, num_rows: int) -> list[str]:
        said = []
        if num_rows:
            said.append(f"the losses of {_counted(num_rows, 'row')} are kept as sums of 32 bits, some 7 digits")
        if self._num_rounded_up:
            rounded = "1 loss is" if self._num_rounded_up == 1 else f"{self._num_rounded_up} losses are"
            said.append(f"{rounded} beyond 32 bits, and infinite now")
        num_unknown = int(np.sum(steps.reason == UNKNOWN_REASON))
        if num_unknown:
            steps_unknown = _counted(num_unknown, "step")
            said.append(f"what became of {steps_unknown} is not known: each is written as one that was taken")
        return said


def _by_attempt(rows: RowColumns) -> Iterator[tuple[int, RowColumns]]:
    """The records in stretches of one attempt."""
    ends = np.append(np.flatnonzero(np.diff(rows.attempt)) + 1, rows.num_records)
    begin = 0
    for end in ends.tolist():
        yield int(rows.attempt[begin]), rows.take(np.arange(begin, end))
        begin = end


def _micro_columns(rows: RowColumns) -> Iterator[MicroColumns]:
    """The records of one attempt in blocks; a micro-batch may go on in the next."""
    for low in range(0, rows.num_records, BLOCK_RECORDS):
        part = rows.take(np.arange(low, min(low + BLOCK_RECORDS, rows.num_records)))
        first = np.ones(part.num_records, np.bool_)
        first[1:] = (part.step[1:] != part.step[:-1]) | (part.micro[1:] != part.micro[:-1])
        begins = np.flatnonzero(first)
        yield MicroColumns(
            step=part.step[begins],
            micro=part.micro[begins].astype(np.int64),
            num_rows=np.diff(np.append(begins, part.num_records)),
            reason=part.reason[begins].astype(np.int64),
            keep=part.keep[begins],
            row=part.row,
            num_tokens=part.num_tokens.astype(np.int64),
            loss_sum=_as_float32(part.loss_sum),
        )


def _as_float32(values: NDArray[np.floating]) -> NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _num_rounded_up(rows: RowColumns) -> int:
    return int(np.sum(np.isfinite(rows.loss_sum) & ~np.isfinite(_as_float32(rows.loss_sum))))


def _known_reasons(steps: StepColumns) -> StepColumns:
    """The steps with a reason that a run folder can hold."""
    return steps._replace(reason=np.where(steps.reason == UNKNOWN_REASON, _STEPPED, steps.reason).astype(np.uint8))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _are(number: int, noun: str) -> str:
    return f"{_counted(number, noun)} {'is' if number == 1 else 'are'}"
