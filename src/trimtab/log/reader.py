"""Opens a log, whatever wrote it, and gives it back as columns and tables.

Enters: a path: a run folder, one of its files, an output folder, or a log of another tool. Leaves: a `Log`. Invariant:
what is left out is said in `notices()`; what is no log at all is an error that says what was found and what is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import LogError
from trimtab.log import folder, foreign, table
from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.log.foreign.steps.metric_names import NAMES
from trimtab.log.frames import MAGIC
from trimtab.log.parts import SEGMENTS_NAME
from trimtab.log.run_source import RunSource
from trimtab.log.source import RecordedEvent, Source
from trimtab.values import Event, RunHeader

_NUM_SHOWN: Final = 3
"""Names in a folder that an error tells."""

_SHOWN_BYTES: Final = 40
"""First bytes of a file that an error tells."""

_NUM_NAMES: Final = 3
"""Names of a training loss, and of a gradient norm, that an error tells."""

_METRIC_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".ndjson")
_METRIC_MARKS: Final = (b",", b";", b"\t", b"{")
"""One of these is in the first line of a file of metrics."""


class Log:
    """One run's log, opened for reading; nothing in it changes the files. `open_log` makes it.

    Args:
        source: What reads the log's format.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def header(self) -> RunHeader:
        """What is known of the run."""
        return self._source.header

    @property
    def format(self) -> str:
        """What it is: "run", "journal" (one of a run, read alone), or one of `trimtab.log.foreign.FORMATS`."""
        return self._source.format

    @property
    def path(self) -> str:
        """What was read: a run folder or a file."""
        return self._source.path

    @property
    def size_bytes(self) -> int:
        """Size of all files of the log, the whole of what `progress` counts up to."""
        return self._source.size_bytes

    @property
    def has_rows(self) -> bool:
        """Whether any row record is in it."""
        return self._source.has_rows

    def notices(self) -> list[str]:
        """What a reader should know: damage with file and byte, missing ranks. Complete after a full pass."""
        return self._source.notices()

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks, as they were recorded; for the arguments see `trimtab.log.source.Source`."""
        return self._source.row_blocks(
            first_step=first_step, last_step=last_step, rows=rows, brief=brief, progress=progress
        )

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """All step records, rank by rank, in the order recorded; for `brief` see `trimtab.log.source.Source`."""
        return self._source.step_columns(brief=brief)

    def step_blocks(self) -> Iterator[StepColumns]:
        """All step records as `step_columns` gives them, in blocks: memory is that of one."""
        return self._source.step_blocks()

    def event_list(self, *, without: Collection[str] = ()) -> list[Event]:
        """All events, by time, but those of the kinds in `without`."""
        return self._source.event_list(without=without)

    def event_stream(self, kinds: Collection[str]) -> Iterator[RecordedEvent]:
        """Events of these kinds, rank by rank in the order recorded; memory is that of one block of them."""
        return self._source.event_stream(kinds)

    def side_columns(self) -> SideColumns:
        """What another tool's log holds beside its steps: figures of routers, the throughput."""
        return self._source.side_columns()

    def id_columns(self) -> IdColumns:
        """What the rows are beside their number."""
        return self._source.id_columns()

    def restarts(self) -> tuple[int, ...]:
        """Attempts that are runs of their own in one file."""
        return self._source.restarts()

    def steps(self) -> table.Table:
        """One line a step and attempt, ranks put together (FORMAT.md, "Tables")."""
        return table.steps_table(self._source)

    def rows(self) -> table.Table:
        """One line a row record."""
        return table.rows_table(self._source)

    def events(self) -> table.Table:
        """One line an event."""
        return table.events_table(self._source)

    def ids(self) -> table.Table:
        """One line a row of which more is known than its number."""
        return table.ids_table(self._source)


def open_log(path: str | os.PathLike[str]) -> Log:
    """Opens the log at `path`.

    Args:
        path: A run folder, its `run.json`, one of its journals, or something in its `segments` (the run is opened); an
            output folder or its `trimtab` folder (the newest run is opened, and the others are said); a log in a format
            of `trimtab.log.foreign`, or a folder that holds one under its usual name.

    Returns:
        The log; reading starts when it is asked for something.

    Raises:
        LogError: Nothing readable is there, or it was written by a newer version.
    """
    place = Path(os.path.abspath(path))
    if place.is_dir():
        return Log(_source_in(place))
    if not place.is_file():
        found = "is neither a file nor a folder" if place.exists() else "does not exist"
        raise LogError(f"{place} {found}. {_what_is_read()}")
    if place.name == folder.HEADER_NAME:
        return Log(_source_in(place.parent))
    around = _run_around(place)
    return Log(RunSource(around) if around is not None else _source_of_file(place))


def _source_in(place: Path) -> Source:
    """The source in a folder."""
    if folder.is_run_folder(place):
        return RunSource(place)
    around = _run_around(place)
    if around is not None:
        return RunSource(around)
    out = place.parent if place.name == folder.RUNS_NAME and not (place / folder.RUNS_NAME).is_dir() else place
    runs = folder.run_folders(out)
    if runs:
        others = [f"{len(runs)} runs are in {out}; the newest, {runs[-1].name}, was read"] if len(runs) > 1 else []
        return RunSource(runs[-1], notices=others)
    files = foreign.usual_files(place)
    if files:
        return _source_of_file(files[0])
    source = foreign.source_in(place)
    if source is not None:
        return source
    raise LogError(f"no log in {place}, {_contents(place)}. {_what_is_read()}")


def _run_around(place: Path) -> Path | None:
    """The run folder, of its `segments`, a segment in there, or a file of one: a run is read whole."""
    folders = [above for above in (place, *place.parents[:2]) if above.name == SEGMENTS_NAME]
    return next((above.parent for above in folders if folder.is_run_folder(above.parent)), None)


def _source_of_file(place: Path) -> Source:
    """The source of one file: a journal, or a log of another tool."""
    if place.suffix == ".journal":
        return RunSource(place.parent, journal=place)
    try:
        head = foreign.read_head(place)
        if head.startswith(MAGIC):
            return RunSource(place.parent, journal=place)
        known = foreign.format_of(place, head)
    except OSError as error:
        raise LogError(f"{place}: cannot be read ({error.strerror}). Give a run folder or a log file.") from error
    if known is not None:
        return known.open_source(place)
    if not head.strip():
        raise LogError(f"{place}: the file is empty. The run may not have reached its first step.")
    raise LogError(
        f"{place} begins with {head[:_SHOWN_BYTES]!r}, as no log that is known does{_names_wanted(place, head)}. "
        f"{_what_is_read()}"
    )


def _names_wanted(place: Path, head: bytes) -> str:
    """Of a file that looks like metrics: by which names they are known, as the end of a sentence."""
    first_line = head.lstrip().partition(b"\n")[0]
    if place.suffix.casefold() not in _METRIC_SUFFIXES or not any(mark in first_line for mark in _METRIC_MARKS):
        return ""
    losses, norms = (", ".join(NAMES[role][:_NUM_NAMES]) for role in ("loss", "grad_norm"))
    return (
        f": in metrics a column, or key, must be a training loss ({losses}, ..., or beside a step any that ends in "
        f'"loss" and is of no evaluation) or a gradient norm ({norms}, ...), and none of its names is one'
    )


def _contents(place: Path) -> str:
    """What is in a folder in which no log was found, as words of an error."""
    try:
        names = sorted(entry.name for entry in place.iterdir())
    except OSError as error:
        return f"which cannot be listed ({error.strerror})"
    if not names:
        return "which is empty"
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return f"which holds {', '.join(map(ascii, names[:_NUM_SHOWN]))}{more}"


def _what_is_read() -> str:
    files = " or ".join(foreign.file_names())
    formats = ", ".join(foreign.FORMATS)
    return (
        f"Give a run folder ({folder.HEADER_NAME}, rank-*.journal, {SEGMENTS_NAME}), a file of it, an output folder "
        f"(trimtab/<run>), or another tool's log: {formats} (in a folder: {files}; TensorBoard's event files; "
        "checkpoint-*/trainer_state.json; version_*/metrics.csv; the only .csv or .jsonl with metrics)."
    )
