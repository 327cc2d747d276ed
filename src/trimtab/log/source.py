"""What a log is to those who read it, whatever wrote it.

Enters: nothing. Leaves: the protocol `Source`, which the reader of each format offers; `trimtab.log.reader.Log` stands
over one of them. Invariant: a source changes no file, and holds a few blocks in memory however long the run was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.values import Event, RunHeader


class RecordedEvent(NamedTuple):
    """An event, and where it was recorded.

    Attributes:
        event: The event.
        rank: The rank that recorded it.
        attempt: The attempt of the run, from 1; None where the log does not tell.
    """

    event: Event
    rank: int
    attempt: int | None


class Source(Protocol):
    """One run's records, opened for reading."""

    @property
    def header(self) -> RunHeader:
        """What is known of the run."""

    @property
    def format(self) -> str:
        """What it is: "run", "journal" (one of a run, read alone), or one of `trimtab.log.foreign.FORMATS`."""

    @property
    def path(self) -> str:
        """What was read: a run folder or a file."""

    @property
    def size_bytes(self) -> int:
        """Size of all files of the log when they were opened, the whole of what `progress` counts up to."""

    @property
    def has_rows(self) -> bool:
        """Whether any row record is in it."""

    def notices(self) -> list[str]:
        """What a reader should know: damage with file and byte, missing ranks. Complete after a full pass."""

    def row_blocks(
        self,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        rows: NDArray[np.int64] | None = None,
        brief: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[RowColumns]:
        """Row records in blocks of one record or more, as they were recorded, rank by rank; memory stays bounded.

        Args:
            first_step: Records before this step may be left out; the caller still filters.
            last_step: Records behind this step may be left out likewise.
            rows: (N,) if given, only these rows are asked for: records of others may be left out likewise.
            brief: Only what the loss of a step is made of is asked for, the loss and tokens of each row and whether its
                micro-batch was kept: `micro`, `row` and `reason` may be left at 0.
            progress: Called now and then with the number of bytes done.

        Raises:
            LogError: A file cannot be read any more.
        """

    def step_columns(self, *, brief: bool = False) -> StepColumns:
        """All step records, rank by rank, in the order recorded. Raises `LogError` as `row_blocks` does.

        Args:
            brief: Only what spikes are looked for in is asked for, the loss and the gradient norm with their reason and
                tokens: the rest may be left unknown.
        """

    def step_blocks(self) -> Iterator[StepColumns]:
        """All step records as `step_columns` gives them, in blocks: memory is that of one."""

    def event_list(self, *, without: Collection[str] = ()) -> list[Event]:
        """All events, by time, but those of the kinds in `without`. Raises `LogError` as `row_blocks` does."""

    def event_stream(self, kinds: Collection[str]) -> Iterator[RecordedEvent]:
        """Events of these kinds, rank by rank in the order recorded; memory is that of one block of them.

        Raises `LogError` as `row_blocks` does.
        """

    def side_columns(self) -> SideColumns:
        """What another tool's log holds beside its steps. Raises `LogError` as `row_blocks` does."""

    def id_columns(self) -> IdColumns:
        """What the rows are beside their number. Raises `LogError` as `row_blocks` does."""

    def restarts(self) -> tuple[int, ...]:
        """Attempts that are runs of their own in one file: their steps begin anew, and supersede none before them."""
