"""Takes what a run observes and puts it into the journal, without ever making the run wait or fail.

Enters: `put(MicroBatch | StepRow | Event)` from the training thread. Leaves: frames, written by a thread of its own at
least once a second. Invariants: `put` neither raises nor waits; memory is bounded, and what did not fit is counted and
written into the log; the first failure of the disk ends the recording with one line, and the run carries on.

```
  training thread           writer thread
  put -> deque -----------> pop 256 -> arrays -> blocks -> journal.append -> sync (once a second)
         full: count        wakes each second, or when 256 items wait
```
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from trimtab import notices
from trimtab.errors import UsageError
from trimtab.log.folder import RunFolder
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter, journal_name
from trimtab.log.records import event_blocks, row_blocks, step_blocks
from trimtab.values import Event, MicroBatch, StepRow

Item = MicroBatch | StepRow | Event

CAPACITY_BYTES: Final = 64 << 20
"""Most memory that may wait for the disk."""

_ENTRY_SIZES: Final = 3  # row, loss and tokens take at most three times the bytes of the rows
_ITEM_BYTES: Final = 1024  # a named tuple and the objects of three small arrays
_BATCH_BYTES: Final = 8 << 20  # what the writer takes at a time, however large the micro-batches are
_MAX_FLUSH_MICROS: Final = 1 << 15
_EXIT_TIMEOUT_S: Final = 10.0


class Recorder:
    """Records one attempt of one run on one rank, until it is closed, collected, or the interpreter ends.

    In a forked child it is silent: the journal belongs to the process that opened it.

    Args:
        folder: Where to; or a call that makes the folder, whose `OSError` turns the recorder off like any other
            failure of the disk.
        rank: This process's rank.
        flush_interval_s: Seconds at most between a `put` and its write.
        flush_micros: Items that are written without waiting so long; also the most micro-batches in one block.
        capacity_micros: Items that may wait for the disk; `CAPACITY_BYTES` is a bound beside it.
        open_journal: `JournalWriter`, or what stands for it in a test.

    Attributes:
        folder: The run folder; None if it could not be made.

    Raises:
        UsageError: Another writer has the journal, or a setting makes no sense.
    """

    def __init__(
        self,
        folder: RunFolder | Callable[[], RunFolder],
        *,
        rank: int = 0,
        flush_interval_s: float = 1.0,
        flush_micros: int = 256,
        capacity_micros: int = 1 << 16,
        open_journal: Callable[..., JournalWriter] = JournalWriter,
    ) -> None:
        if not 0 < flush_interval_s <= 3600 or not 1 <= flush_micros <= _MAX_FLUSH_MICROS or capacity_micros < 1:
            raise UsageError(
                f"flush_interval_s={flush_interval_s}, flush_micros={flush_micros}, capacity_micros={capacity_micros}: "
                f"expected up to 3600 seconds, 1 to {_MAX_FLUSH_MICROS} micro-batches, and room for at least one"
            )
        self.folder: RunFolder | None = None
        self._writer = _Writer(flush_interval_s, flush_micros, capacity_micros)
        try:
            self.folder = folder if isinstance(folder, RunFolder) else folder()
            path = self.folder.path / journal_name(rank)
            self._writer.start(
                open_journal(path, attempt=self.folder.attempt, rank=rank), dump_header(self.folder.header)
            )
        except OSError as error:
            self._writer.turn_off(error)
        # Also at interpreter exit, before daemon threads are stopped.
        self._finalizer = weakref.finalize(self, self._writer.close, _EXIT_TIMEOUT_S)

    def put(self, item: Item) -> None:
        """Takes one item; its arrays must not be changed afterwards. Never raises and never waits."""
        self._writer.put(item)

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything put so far is handed to the operating system; False if not all of it was, in time."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = _EXIT_TIMEOUT_S) -> None:
        """Writes what waits, syncs and closes; what is not written in time is said. Later items are discarded."""
        self._finalizer.detach()
        self._writer.close(timeout_s)

    @property
    def num_dropped(self) -> int:
        """Items that found no room because the disk was too slow."""
        return self._writer.num_dropped

    @property
    def off_reason(self) -> str | None:
        """Why nothing is recorded any more; None while it is, and after an orderly `close`."""
        return self._writer.off_reason


class _Writer:
    """The queue, the thread, and the journal at its end. Knows no `Recorder`, so that one can be collected."""

    def __init__(self, flush_interval_s: float, flush_micros: int, capacity: int) -> None:
        self.off_reason: str | None = None
        self.num_dropped = 0
        self._flush_interval_s = flush_interval_s
        self._flush_micros = flush_micros
        self._capacity = capacity
        self._queue: deque[tuple[int, object]] = deque()
        # Two counters with one writer each, instead of one with a lock: bytes that wait are their difference.
        self._bytes_put = 0
        self._bytes_taken = 0
        self._stopped = False  # nothing more is taken
        self._closing = False
        self._journal: JournalWriter | None = None
        self._thread: threading.Thread | None = None
        # A bare lock that is held while nobody needs the writer: releasing it never waits, unlike an Event's set().
        self._bell = threading.Lock()
        self._bell.acquire()
        self._flushed = threading.Condition()
        self._num_asked = 0
        self._num_answered = 0
        self._drops = _Drops()
        self._drops_written = _Drops()
        self._has_said_refused = False

    def start(self, journal: JournalWriter, header: bytes) -> None:
        """Writes the attempt's header and begins to take items. Raises `OSError` if that write fails."""
        self._journal = journal
        journal.append(Block(KIND_ATTEMPT, 1, 0, 0, [header]))
        self._thread = threading.Thread(target=self._run, name="trimtab-recorder", daemon=True)
        self._thread.start()
        _live.add(self)

    def put(self, item: Item) -> None:
        if self._stopped:
            return
        size = _ITEM_BYTES
        if type(item) is MicroBatch:
            try:
                size += item.rows.nbytes * _ENTRY_SIZES
            except Exception:  # noqa: BLE001 - a list, or no array at all: the writer finds out which
                size += 24 * len(item.rows) if isinstance(item.rows, (list, tuple)) else 0
        queue = self._queue
        if len(queue) >= self._capacity or self._bytes_put - self._bytes_taken + size > CAPACITY_BYTES:
            self.num_dropped += 1
            self._drops.count(item)
            return
        self._bytes_put += size
        queue.append((size, item))
        if len(queue) >= self._flush_micros:
            self._ring()

    def flush(self, timeout_s: float) -> bool:
        if self._stopped or self._thread is None:
            return False
        with self._flushed:
            self._num_asked += 1
            ticket = self._num_asked
            self._ring()
            self._flushed.wait_for(lambda: self._num_answered >= ticket or self._stopped, timeout_s)
            return self._num_answered >= ticket and self.off_reason is None

    def close(self, timeout_s: float) -> None:
        self._stopped = True
        self._closing = True
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._ring()
        thread.join(timeout_s)
        if thread.is_alive():
            notices.warn(
                "recorder",
                f"Trimtab recorder: {len(self._queue)} items were not written within {timeout_s:g} s; the disk is slow",
            )

    def turn_off(self, error: Exception) -> None:
        """Ends the recording with one line; everything after is discarded."""
        self._stopped = True
        self.off_reason = _spell(error)
        self._queue.clear()
        if self._journal is not None:
            with contextlib.suppress(OSError):  # the failure was said already: this is its echo
                self._journal.close()
        notices.warn("recorder", f"Trimtab recorder off: {self.off_reason}")

    def abandon(self) -> None:
        """In a forked child: no thread is left here, and the journal is the parent's."""
        self._stopped = True
        self._thread = None
        self._queue = deque()
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
                num_asked = self._num_asked
                self._drain(journal)
                with self._flushed:
                    self._num_answered = num_asked
                    self._flushed.notify_all()
                journal.sync()
            self._drain(journal)
            journal.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the recording and not the run
            self.turn_off(error)
        finally:
            with self._flushed:
                self._flushed.notify_all()

    def _drain(self, journal: JournalWriter) -> None:
        """Writes what waits now; what is put meanwhile waits for the next time."""
        num_waiting = len(self._queue)
        while num_waiting:
            micros: list[MicroBatch] = []
            steps: list[StepRow] = []
            events: list[Event] = []
            others: list[str] = []
            size = 0
            while num_waiting and len(micros) < self._flush_micros and size < _BATCH_BYTES:
                num_waiting -= 1
                item_size, item = self._queue.popleft()
                size += item_size
                if isinstance(item, MicroBatch):
                    micros.append(item)
                elif isinstance(item, StepRow):
                    steps.append(item)
                elif isinstance(item, Event):
                    events.append(item)
                else:
                    others.append(f"{type(item).__name__} is no MicroBatch, StepRow or Event")
            for blocks, refused in (row_blocks(micros), step_blocks(steps), event_blocks(events), ([], others)):
                for block in blocks:
                    journal.append(block)
                if refused:
                    self._tell_refused(journal, refused)
            self._bytes_taken += size
        if self._drops != self._drops_written:
            self._tell_dropped(journal)

    def _tell_dropped(self, journal: JournalWriter) -> None:
        drops = self._drops.copy()
        event = Event("dropped", drops.last_step, time.time(), drops.since(self._drops_written))
        for block in event_blocks([event])[0]:
            journal.append(block)
        if self._drops_written == _Drops():
            notices.warn("recorder", "Trimtab recorder: the disk is slow, items were dropped; the log counts them")
        self._drops_written = drops

    def _tell_refused(self, journal: JournalWriter, refused: list[str]) -> None:
        event = Event("refused", 0, time.time(), {"num_items": len(refused), "reason": refused[0]})
        for block in event_blocks([event])[0]:
            journal.append(block)
        if not self._has_said_refused:
            self._has_said_refused = True
            notices.warn(
                "recorder", f"Trimtab recorder: an item was left out: {refused[0]}; the log counts further ones"
            )


class _Drops:
    """Counts of what found no room, by kind."""

    def __init__(self, num_micros: int = 0, num_steps: int = 0, num_events: int = 0, last_step: int = 0) -> None:
        self.num_micros = num_micros
        self.num_steps = num_steps
        self.num_events = num_events
        self.last_step = last_step

    def count(self, item: object) -> None:
        if isinstance(item, MicroBatch):
            self.num_micros += 1
        elif isinstance(item, StepRow):
            self.num_steps += 1
        else:
            self.num_events += 1
        step = getattr(item, "step", 0)
        if type(step) is int:
            self.last_step = step

    def copy(self) -> _Drops:
        return _Drops(self.num_micros, self.num_steps, self.num_events, self.last_step)

    def since(self, earlier: _Drops) -> dict[str, int]:
        """What was dropped after the earlier count, as an event's facts."""
        return {
            "num_micros": self.num_micros - earlier.num_micros,
            "num_steps": self.num_steps - earlier.num_steps,
            "num_events": self.num_events - earlier.num_events,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Drops) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _spell(error: Exception) -> str:
    """The reason of the one line: what the system said, and about which file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


_live: weakref.WeakSet[_Writer] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_live):
        writer.abandon()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_abandon_all)
