"""When a journal is closed and sealed, and what happens where it cannot be.

Enters: the journal that is being written. Leaves: segments, through `trimtab.log.sealing`. Invariants: nothing in here
ends the recording or raises: what cannot be sealed stays a journal, which every reader reads; the number of parts grows
with the logarithm of what a rank recorded, until parts are 128 MiB.

DuckDB is imported when the first journal is sealed: a run that records a step pays 0.1 s for it once, in the writer
thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trimtab.log.frames import Block
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import ACTIVE, journal_name, list_parts, next_number
from trimtab.log.records import spell_fault

SEAL_BYTES: Final = 8 << 20
"""A million row records, sealed in 0.6 to 0.8 s of CPU."""

_MAX_SEAL_BYTES: Final = 128 << 20
"""20 million row records: the last step of their sealing takes 3 s in one piece, in which nothing is written."""

_SHARE: Final = 16
"""A journal is closed when it has a 16th of what was sealed before: so parts grow with the log."""


class Sealer:
    """Closes and seals the journals of one rank.

    Args:
        folder: The run folder.
        rank: The rank.
        seal_bytes: Least size of a journal that is sealed while the run goes on.

    Attributes:
        failure: Why a journal was not sealed, the first time one was not; None until then.
    """

    def __init__(self, folder: Path, *, rank: int, seal_bytes: int) -> None:
        self.failure: str | None = None
        self._folder = folder
        self._rank = rank
        self._seal_bytes = seal_bytes
        self._is_off = False
        self._left: set[int] = set()  # parts that stay journals
        self._closed_bytes = self._size_of_parts()

    def is_due(self, journal: JournalWriter) -> bool:
        """Whether the journal is large enough to be closed."""
        if self._is_off:
            return False
        due = min(max(self._seal_bytes, self._closed_bytes // _SHARE), max(self._seal_bytes, _MAX_SEAL_BYTES))
        return journal.size_bytes >= due and self._is_in_place(journal)

    def rotate(self, journal: JournalWriter, first: Block) -> Iterator[None]:
        """Closes the journal, goes on in a new one that begins with `first`, and seals; yields between pieces."""
        size = journal.size_bytes
        try:
            journal.rotate(self._folder / journal_name(self._rank, self._next_number()), first)
        except Exception as error:  # noqa: BLE001 - whatever it is, the journal goes on as it was
            self._stop(error)
            return
        self._closed_bytes += size
        yield
        try:
            yield from self._seal_closed()
        finally:
            journal.release()

    def finish(self, journal: JournalWriter) -> Iterator[None]:
        """Closes the journal for good and seals; yields between pieces."""
        if self._is_off or not self._is_in_place(journal):
            return
        try:
            journal.finish(self._folder / journal_name(self._rank, self._next_number()))
        except Exception as error:  # noqa: BLE001 - as above
            self._stop(error)
            return
        yield from self._seal_closed()

    def _seal_closed(self) -> Iterator[None]:
        """Seals all closed journals of the rank, also those that a killed writer left."""
        try:
            # Here, because it loads DuckDB.
            from trimtab.log.sealing import NotSealedError, seal
        except Exception as error:  # noqa: BLE001 - an installation that is not whole
            self._stop(error)
            return
        try:
            for part in list_parts(self._folder):
                if part.rank != self._rank or part.number in {ACTIVE, *self._left} or part.journal is None:
                    continue
                try:
                    yield from seal(self._folder, part)
                except NotSealedError as error:
                    if not error.is_of_journal:
                        self._stop(error)
                        return
                    self._left.add(part.number)
                    self.failure = self.failure or spell_fault(str(error))
        except Exception as error:  # noqa: BLE001 - never into the recording
            self._stop(error)

    def _next_number(self) -> int:
        return next_number(self._folder, self._rank)

    def _is_in_place(self, journal: JournalWriter) -> bool:
        """A journal that was moved is written where it is now, and sealed by nobody."""
        try:
            return journal.is_in_place()
        except FileNotFoundError:  # the next drain says it
            return False

    def _stop(self, error: Exception) -> None:
        """A fault that the next journal would meet too."""
        self._is_off = True
        self.failure = self.failure or spell_fault(str(error) or type(error).__name__)

    def _size_of_parts(self) -> int:
        total = 0
        with contextlib.suppress(OSError):
            for part in list_parts(self._folder):
                if part.rank == self._rank and part.number != ACTIVE:
                    files = [part.journal] if part.journal is not None else []
                    files += part.segment.iterdir() if part.segment is not None else []
                    total += sum(file.stat().st_size for file in files)
        return total
