"""The writer thread: what waits in the backlog becomes blocks, and blocks become frames of the journal.

Enters: items, through a `Backlog`. Leaves: frames; a `Sealer` makes segments of them. Invariants: whatever is wrong
with an item costs that item, is said once and counted in the log; only what the system says about the file ends the
recording, and that with one line.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from trimtab import notices
from trimtab.log.frames import KIND_ATTEMPT, KIND_ROWS, KIND_STEPS, Block
from trimtab.log.journal import JournalWriter
from trimtab.log.records import event_blocks, id_blocks, row_blocks, spell_fault, step_blocks
from trimtab.recorder.backlog import Backlog, Batch, Drops, TooLarge
from trimtab.recorder.sealer import Sealer
from trimtab.values import Event, MicroBatch, RowIds, StepRow

Item = MicroBatch | StepRow | Event | RowIds

_BATCH_BYTES: Final = 8 << 20  # what is taken at a time, however large the micro-batches are
_SLOW: Final = "the disk is slow"


class Observer(Protocol):
    """Looks at what is recorded, in the writer's thread: it may wait for values, as the writer does.

    Attributes:
        subject: What it looks at, for the line that says that it could not.
    """

    @property
    def subject(self) -> str:
        """As above."""

    def observe(self, items: Sequence[object]) -> list[Event]:
        """Takes items in the order put; what it makes of them is recorded behind them."""

    def finish(self) -> list[Event]:
        """What is to be recorded at the end."""


class Writer:
    """The queue, the thread, and the journal at its end. Knows no `Recorder`, so that one can be collected.

    Args:
        flush_interval_s: Seconds at most between a `put` and its write.
        flush_micros: Items that are written without waiting so long; also the most micro-batches in one block.
        capacity: Items that may wait.
        rank: This process's rank, which a line names where it is not the first.
        observers: What looks at the items, each by itself.

    Attributes:
        off_reason: Why the recording ended before `close`; None otherwise.
    """

    def __init__(
        self,
        flush_interval_s: float,
        flush_micros: int,
        capacity: int,
        *,
        rank: int = 0,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.off_reason: str | None = None
        self._flush_interval_s = flush_interval_s
        self._flush_micros = flush_micros
        self._backlog = Backlog(capacity, ring_at=flush_micros)
        self._observers = list(observers)
        self._stopped = False  # nothing more is taken
        self._closing = False
        self._journal: JournalWriter | None = None
        self._sealer: Sealer | None = None
        self._num_appended = 0  # blocks of rows or steps
        self._all_written = False
        self._thread: threading.Thread | None = None
        # A bare lock that is held while nobody needs the writer: releasing it never waits, unlike an Event's set().
        self._bell = threading.Lock()
        self._bell.acquire()
        self._flushed = threading.Condition()
        self._num_asked = 0
        self._num_answered = 0
        self._drops_written = Drops()
        self._said: set[str] = set()
        self._where = "" if rank == 0 else f" on rank {rank}"

    @property
    def num_dropped(self) -> int:
        """Items that found no room."""
        return self._backlog.num_dropped

    def start(self, journal: JournalWriter, header: bytes, sealer: Sealer | None = None) -> None:
        """Writes the attempt's header and begins to take items.

        Args:
            journal: Where to.
            header: The attempt's header.
            sealer: What seals the journal when it is large, and at the end; None: nothing does.

        Raises:
            OSError: The header could not be written.
        """
        self._journal = journal
        self._sealer = sealer
        self._first = Block(KIND_ATTEMPT, 1, 0, 0, [header])
        journal.append(self._first)
        thread = threading.Thread(target=self._run, name="trimtab-recorder", daemon=True)
        thread.start()
        self._thread = thread
        _live.add(self)

    def put(self, item: object) -> None:
        """Takes one item. Never raises and never waits."""
        if not self._stopped and self._backlog.put(item):
            self._ring()

    def take_over(self, waiting: Backlog) -> None:
        """Takes all that waits in another queue, and its count of what found no room. Never raises."""
        waiting.pour_into(self._backlog)
        self._ring()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything put so far is written; False if not all of it was, in time."""
        if self._stopped or self._thread is None:
            return False
        with self._flushed:
            self._num_asked += 1
            ticket = self._num_asked
            self._ring()
            self._flushed.wait_for(lambda: self._num_answered >= ticket or self._stopped, timeout_s)
            return self._num_answered >= ticket and self.off_reason is None

    def close(self, timeout_s: float) -> None:
        """Writes what waits and closes the journal; what is not written in time is said."""
        self._stopped = True
        self._closing = True
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._ring()
        thread.join(timeout_s)
        if thread.is_alive() and not self._all_written:  # else it is sealing, and the journal is whole
            self._warn(f"{len(self._backlog)} items were not written within {timeout_s:g} s; {_SLOW}")

    def turn_off(self, error: BaseException) -> None:
        """Ends the recording with one line; everything after is discarded."""
        self._stopped = True
        self.off_reason = reason_of(error)
        self._backlog.clear()
        if self._journal is not None:
            with contextlib.suppress(OSError):  # the failure was said already: this is its echo
                self._journal.close()
        _warn(f"Trimtab recorder off{self._where}: {self.off_reason}")

    def abandon(self) -> None:
        """In a forked child: no thread is left here, and the journal is the parent's."""
        self._stopped = True
        self._thread = None
        self._backlog.clear()
        if self._journal is not None:
            self._journal.abandon()

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has been rung and not yet heard
            self._bell.release()

    def _run(self) -> None:
        journal = self._journal
        assert journal is not None
        try:
            while not self._closing:
                self._bell.acquire(timeout=self._flush_interval_s)
                self._turn(journal)
                if self._sealer is not None and self._sealer.is_due(journal):
                    self._seal(self._sealer.rotate(journal, self._first), journal)
            self._drain(journal)
            self._observe(journal, None)
            self._all_written = True
            if self._sealer is not None and self._num_appended:
                self._seal(self._sealer.finish(journal), None)
            journal.close()
        except BaseException as error:  # noqa: BLE001 - above this there is only the thread's silent end
            self.turn_off(error)
        finally:
            with self._flushed:
                self._flushed.notify_all()

    def _turn(self, journal: JournalWriter) -> None:
        """Writes what waits, answers who waits for it, and syncs if it is time."""
        num_asked = self._num_asked
        self._drain(journal)
        with self._flushed:
            self._num_answered = num_asked
            self._flushed.notify_all()
        journal.sync()

    def _seal(self, sealing: Iterator[None], journal: JournalWriter | None) -> None:
        """Seals what is closed, and between its pieces writes what waits, if there is a journal to write it to."""
        for _ in sealing:
            if journal is not None:
                self._turn(journal)
        assert self._sealer is not None
        if self._sealer.failure is not None:
            self._say_once(
                "sealing",
                f"a journal stays as it is and is not sealed into Parquet: {self._sealer.failure}. "
                "Nothing is lost, and it is read all the same",
            )

    def _drain(self, journal: JournalWriter) -> None:
        """Writes what waits now; what is put meanwhile waits for the next time."""
        num_waiting = len(self._backlog)
        while num_waiting:
            batch = self._backlog.take(num_waiting, max_micros=self._flush_micros, max_bytes=_BATCH_BYTES)
            num_waiting -= len(batch.items)
            self._write(journal, batch)
            self._observe(journal, batch.items)
            self._backlog.free(batch)
        drops = self._backlog.drops.copy()
        if drops != self._drops_written:
            self._append(journal, _event("dropped", drops.last_step, drops.since(self._drops_written)))
            self._drops_written = drops
            self._say_once("dropped", f"{_SLOW}, items were dropped; the log counts them")
        if not journal.is_in_place():
            self._say_once(
                "moved",
                f"{journal.path} is no longer there: it was moved while the run writes to it. What "
                "the run records goes into the moved file; read it there",
            )

    def _write(self, journal: JournalWriter, batch: Batch) -> None:
        micros: list[MicroBatch] = []
        steps: list[StepRow] = []
        events: list[Event] = []
        ids: list[RowIds] = []
        others: list[str] = []
        for item in batch.items:
            if type(item) is MicroBatch:
                micros.append(item)
            elif type(item) is StepRow:
                steps.append(item)
            elif type(item) is Event:
                events.append(item)
            elif type(item) is RowIds:
                ids.append(item)
            elif type(item) is TooLarge:
                others.append(item.reason)
            else:
                others.append(f"{type(item).__name__} is no MicroBatch, StepRow, Event or RowIds")
        nothing: list[Block] = []
        made = (row_blocks(micros), step_blocks(steps), event_blocks(events), id_blocks(ids), (nothing, others))
        for blocks, refused in made:
            refused += self._append(journal, blocks)
            if refused:
                self._append(journal, _event("refused", 0, {"num_items": len(refused), "reason": refused[0]}))
                self._say_once(
                    "refused",
                    f"an item was left out: {refused[0]}; the log counts further ones",
                )

    def _observe(self, journal: JournalWriter, items: Sequence[object] | None) -> None:
        """Shows the items to the observers, None at the end; one that fails is asked no more, and the others go on."""
        for observer in tuple(self._observers):
            try:
                events = observer.finish() if items is None else observer.observe(items)
            except Exception as error:  # noqa: BLE001 - what looks on must cost neither a record nor the run
                self._observers.remove(observer)
                self._say_once(observer.subject, f"{observer.subject} could not be looked at: {reason_of(error)}")
                continue
            self._append(journal, event_blocks(events)[0])

    def _append(self, journal: JournalWriter, blocks: Sequence[Block]) -> list[str]:
        """Writes the blocks; for each record of one that cannot be packed, why. Raises `OSError` as the disk does."""
        refused: list[str] = []
        for block in blocks:
            try:
                journal.append(block)
                self._num_appended += block.kind in (KIND_ROWS, KIND_STEPS)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - no memory to pack it in, say: the next block may be smaller
                refused += [spell_fault(error)] * block.num_records
        return refused

    def _say_once(self, cause: str, message: str) -> None:
        if cause not in self._said:
            self._said.add(cause)
            self._warn(message)

    def _warn(self, message: str) -> None:
        _warn(f"Trimtab recorder{self._where}: {message}")


def reason_of(error: BaseException) -> str:
    """The reason of the one line: what the system said, and about which file; printable ASCII, one line."""
    if isinstance(error, OSError) and error.strerror:
        return spell_fault(f"{error.strerror}: {error.filename}" if error.filename else error.strerror, max_length=5000)
    return spell_fault(error, max_length=5000)  # a path may be long, and what happened to it stands behind it


def _event(kind: str, step: int, facts: Mapping[str, object]) -> list[Block]:
    return event_blocks([Event(kind, step, time.time(), dict(facts))])[0]


def _warn(message: str) -> None:
    # A handler of the user's that raises must end neither the writer nor the run.
    with contextlib.suppress(Exception):
        notices.warn("recorder", message)


_live: weakref.WeakSet[Writer] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_live):
        writer.abandon()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_abandon_all)
