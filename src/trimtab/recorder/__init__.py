"""Takes what a run observes and puts it into the journal, without ever making the run wait or fail.

Enters: `put(MicroBatch | StepRow | Event | RowIds)` from the training thread. Leaves: frames, written by a thread of
its own at least once a second, and sealed segments. Invariants: `put` neither raises nor waits; memory is bounded, and
what did not fit is counted and written into the log; an item that cannot be recorded costs itself; the first failure of
the disk ends the recording with one line, and the run carries on.

```
  training thread               writer thread
  put -> Backlog -------------> take 256 -> arrays -> blocks -> journal.append -> sync (once a second)
         full: count            wakes each second, or when 256 items wait
                                a large journal, and at the end any: rotate -> segment (Parquet)
```
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.errors import TrimtabError, UsageError
from trimtab.log.folder import RunFolder
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.recorder.backlog import Backlog
from trimtab.recorder.sealer import SEAL_BYTES, Sealer
from trimtab.recorder.writer import Item, Observer, Writer, reason_of

__all__ = ["Item", "Observer", "Recorder", "reason_of"]

_MAX_FLUSH_MICROS: Final = 1 << 15
_EXIT_TIMEOUT_S: Final = 10.0


class Recorder:
    """Records one attempt of one run on one rank, until it is closed, collected, or the interpreter ends.

    In a forked child it is silent: the journal belongs to the process that opened it.

    Args:
        folder: Where to.
        rank: This process's rank.
        flush_interval_s: Seconds at most between a `put` and its write.
        flush_micros: Items that are written without waiting so long; also the most micro-batches in one block.
        capacity_micros: Items that may wait for the disk; `backlog.CAPACITY_BYTES` is a bound beside it.
        seal_bytes: Size from which on a journal is sealed while the run goes on; None: no journal ever is, not even at
            the end.
        open_journal: `JournalWriter`, or what stands for it in a test.
        observers: What looks at the items in the writer's thread, each by itself, and may add events.

    Raises:
        UsageError: Another writer has the journal, or a setting makes no sense. Whatever else goes wrong, a path that
            the system cannot take or a folder that is gone, turns the recorder off with one line.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        rank: int = 0,
        flush_interval_s: float = 1.0,
        flush_micros: int = 256,
        capacity_micros: int = 1 << 16,
        seal_bytes: int | None = SEAL_BYTES,
        open_journal: Callable[..., JournalWriter] = JournalWriter,
        observers: Sequence[Observer] = (),
    ) -> None:
        if not 0 < flush_interval_s <= 3600 or not 1 <= flush_micros <= _MAX_FLUSH_MICROS or capacity_micros < 1:
            raise UsageError(
                f"flush_interval_s={flush_interval_s}, flush_micros={flush_micros}, capacity_micros={capacity_micros}: "
                f"expected up to 3600 seconds, 1 to {_MAX_FLUSH_MICROS} micro-batches, and room for at least one"
            )
        self._writer = Writer(flush_interval_s, flush_micros, capacity_micros, rank=rank, observers=observers)
        try:
            header = dump_header(folder.header)
            path = folder.path / journal_name(rank)
            journal = open_journal(path, attempt=folder.attempt, rank=rank)
            sealer = Sealer(folder.path, rank=rank, seal_bytes=seal_bytes) if seal_bytes is not None else None
            self._writer.start(journal, header, sealer)
        except TrimtabError:
            raise
        except Exception as error:  # noqa: BLE001 - a full disk, a NUL in a path, no thread to be had: the run goes on
            self._writer.turn_off(error)
        # Also at interpreter exit, before daemon threads are stopped.
        self._finalizer = weakref.finalize(self, self._writer.close, _EXIT_TIMEOUT_S)

    def put(self, item: Item) -> None:
        """Takes one item; its arrays must not be changed afterwards. Never raises and never waits."""
        self._writer.put(item)

    def take_over(self, waiting: Backlog) -> None:
        """Takes all that waited elsewhere until it was known where to write, and the count of what found no room."""
        self._writer.take_over(waiting)

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
