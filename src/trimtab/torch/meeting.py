"""Where the ranks of a run meet, so that all write into one run folder: the default store of torch.distributed.

Enters: the run id and attempt that rank 0 settled on. Leaves: the same on every other rank, whenever it asks.
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

from trimtab.notices import warn_once
from trimtab.recording import NOT_RECORDED
from trimtab.rules.scalar import spelled
from trimtab.torch.ranks import Ranks

_num_meetings: Final[Counter[str]] = Counter()
"""Runs that this process began, by what they were given as `out`: the ranks of a run begin the same ones in turn."""


class Store(Protocol):
    """What is used of a store of torch.distributed: a TCPStore, a FileStore, or one with a prefix."""

    def set(self, key: str, value: str, /) -> None:
        """Puts a value under a key."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there; answers at once."""

    def get(self, key: str, /) -> bytes:
        """The value under a key; waits for one that is not there."""


def meeting_place(ranks: Ranks, *, out: str | os.PathLike[str] | None) -> Callable[[], StoreMeeting] | None:
    """Makes the meeting of each further run of these ranks under `out`; None where there is nobody to meet."""
    # Groups whose rows are not recorded would answer to the same key as the one whose rows are.
    return None if ranks.alone or not ranks.records else partial(StoreMeeting, ranks, out=out)


class StoreMeeting:
    """The meeting of one run's ranks; see `trimtab.recording.Meeting`.

    Runs are told apart by the folder they were given, in the words of the caller, and by their number among those of
    this process: every rank has to make its runs in the same order. A run begun by a later start of the same job is
    another one, for a start of torch.distributed has a store of its own.

    Args:
        ranks: The ranks.
        out: What the run was given as its folder; the same on every rank.
    """

    def __init__(self, ranks: Ranks, *, out: str | os.PathLike[str] | None) -> None:
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        # Let go as soon as the word is said or heard: whoever holds a store keeps its server and its port.
        self._store = default_store()
        self._word: tuple[str, int] | None = NOT_RECORDED if self._store is None else None
        name = os.path.normpath(os.fsdecode(out)) if out is not None else ""
        _num_meetings[name] += 1
        self._key = json.dumps(["trimtab run", name, _num_meetings[name]])
        if self._store is None:
            warn_once(
                "recorder",
                f"{self.world_size} processes train, and this torch has no store through which they could agree on one "
                "log: rank 0 is recorded alone, and shares are over its rows only.",
                cause="no store",
            )

    def tell(self, run_id: str, attempt: int) -> None:
        """Says to all ranks which run and attempt it is. Never raises: a rank that hears nothing says so itself."""
        if self._store is None:
            return
        try:
            self._store.set(self._key, json.dumps([run_id, attempt]))
        except Exception as error:  # noqa: BLE001 - a store whose host is gone: the run ends elsewhere, if it does
            self._warn(error)
        self._store = None

    def heard(self) -> tuple[str, int] | None:
        """What rank 0 said; None if it has not said anything yet. One look into the store, 0.02 ms on one machine."""
        if self._store is None:
            return self._word
        try:
            if not self._store.check([self._key]):
                return None
            run_id, attempt = json.loads(self._store.get(self._key))
            self._word = str(run_id), int(attempt)
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)
            self._word = NOT_RECORDED
        self._store = None
        return self._word

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
