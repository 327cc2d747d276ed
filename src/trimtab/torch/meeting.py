"""Where the ranks of a run meet, so that all write into one run folder: the default store of torch.distributed.

Enters: the run id, attempt and folder that rank 0 settled on. Leaves: the same on every other rank, whenever it asks.
Invariant: no collective is called and nothing waits for another rank: `check` answers at once, and `get` is called only
for what is there. (A `get` that waits holds the store's client, and with it whoever sets up a process group meanwhile.)
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import torch.distributed as dist

from trimtab.guard import GuardConfig
from trimtab.notices import warn_once
from trimtab.recorder.meeting import NOT_RECORDED, Word
from trimtab.rules.scalar import spelled
from trimtab.torch.ranks import Ranks
from trimtab.values import RunHeader

_num_meetings: Final[Counter[str]] = Counter()
"""Runs in which this process trained, by what is alike on all ranks of a run: they train in the same ones in turn."""


class Store(Protocol):
    """What is used of a store of torch.distributed: a TCPStore, a FileStore, or one with a prefix."""

    def set(self, key: str, value: str, /) -> None:
        """Puts a value under a key."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there; answers at once."""

    def get(self, key: str, /) -> bytes:
        """The value under a key; waits for one that is not there."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a count, that is 0 where it is not there, and gives what it is then."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Puts `desired` where `expected` stands, "" for a key that is not there; gives what stands there then."""


def meeting_place(
    ranks: Ranks, *, out: str | os.PathLike[str] | None, header: RunHeader, guard: GuardConfig | None
) -> Callable[[], StoreMeeting] | None:
    """Makes the meeting of each further run of these ranks with these settings; None where there is nobody to meet."""
    # Groups whose rows are not recorded would answer to the same key as the one whose rows are.
    if ranks.alone or not ranks.records:
        return None
    name = os.path.normpath(os.fsdecode(out)) if out is not None else ""
    # Not the data, of which each rank may hold a part, nor the run's id, which rank 0 gives.
    saved = None if guard is None else guard.saved
    alike = json.dumps(["trimtab run", name, header.backend, header.task, header.accumulation, saved])
    return partial(StoreMeeting, ranks, alike=alike)


class StoreMeeting:
    """The meeting of one run's ranks; see `trimtab.recording.Meeting`.

    Runs are told apart by what must be alike on all their ranks (the folder they were given, in the words of the
    caller, the guard, the accumulation), and by their number among those in which this process trained: every rank has
    to begin its runs in the same order. What rank 0 alone trained and ended before is passed by. A run begun by a later
    start of the same job is another one, for a start of torch.distributed has a store of its own.

    Args:
        ranks: The ranks.
        alike: What is alike on all ranks of the run.
    """

    def __init__(self, ranks: Ranks, *, alike: str) -> None:
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        # Let go as soon as the word is said or heard: whoever holds a store keeps its server and its port.
        self._store = default_store()
        self._word: Word | None = NOT_RECORDED if self._store is None else None
        self._alike = alike
        self._number: int | None = None
        self._passed: tuple[int, Word] | None = None
        """The first run that had ended before this rank trained."""
        if self._store is None:
            warn_once(
                "recorder",
                f"{self.world_size} processes train, and this torch has no store through which they could agree on one "
                "log: rank 0 is recorded alone, and shares are over its rows only.",
                cause="no store",
            )

    def tell(self, word: Word) -> None:
        """Says to all ranks where the run is. Never raises: a rank that hears nothing says so itself."""
        if self._store is None:
            return
        try:
            self._store.set(self._key(self._begun()), json.dumps(word))
        except Exception as error:  # noqa: BLE001 - a store whose host is gone: the run ends elsewhere, if it does
            self._warn(error)
        self._store = None

    def tell_end(self) -> None:
        """Says to all ranks that the run has ended. Never raises; says nothing where the group is gone already."""
        if self._number is None or not dist.is_initialized():
            return
        try:
            store = default_store()
            if store is not None:
                store.set(self._end_key(self._number), "")
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)

    def heard(self, *, at_end: bool = False) -> Word | None:
        """What rank 0 said; None if it has not said anything yet. One look into the store, 0.02 ms on one machine.

        Args:
            at_end: As in `trimtab.recording.Meeting`.
        """
        if self._store is None:
            return self._word
        try:
            self._word = self._look(self._store, at_end=at_end)
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)
            self._word = NOT_RECORDED
        if self._word is not None:
            self._store = None
        return self._word

    def _look(self, store: Store, *, at_end: bool) -> Word | None:
        if self._number is None:
            while store.check([self._end_key(self._begun())]):
                self._passed = self._passed or (self._begun(), self._read(store))
                self._number = None
        number = self._begun()
        if store.check([self._key(number)]):
            return self._read(store)
        if not at_end or self._passed is None:
            return None
        # Rank 0 has begun no other: ranks that never waited for each other trained one after the other.
        _num_meetings[self._alike], word = self._passed
        return word

    def _read(self, store: Store) -> Word:
        run_id, attempt, folder = json.loads(store.get(self._key(self._begun())))
        return Word(str(run_id), int(attempt), str(folder))

    def _begun(self) -> int:
        """The number of this run, from 1, which it takes when it is first asked for."""
        if self._number is None:
            _num_meetings[self._alike] += 1
            self._number = _num_meetings[self._alike]
        return self._number

    def _key(self, number: int) -> str:
        return f"{self._alike} {number}"

    def _end_key(self, number: int) -> str:
        return f"{self._alike} {number} ended"

    def _warn(self, error: Exception) -> None:
        warn_once(
            "recorder",
            f"Rank {self.rank} cannot use the store of torch.distributed, by which the ranks agree on one log: "
            f"{spelled(error)}.",
            cause="store",
        )


def default_store() -> Store | None:
    """The store that `init_process_group` made or was given; None where this torch does not hand it out.

    There is no public way to it: what `torch.distributed` offers needs a host, a port or a file that all ranks know.
    """
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get is None:
        return None
    store: Store = get()
    return store
