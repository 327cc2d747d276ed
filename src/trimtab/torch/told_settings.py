"""What each rank of a run has (a guard, a watch), told through the store of torch.distributed before a sum is taken.

Enters: settings of this rank, by what they are of; None for what it has not. Leaves: which ranks lack what this one
has, and which settings differ. Invariants: no collective is called, so that a rank which has nothing to sum, or takes
no part at all, keeps nobody waiting for good; and all that ask about the same run are answered alike, whenever they do.

Every rank tells, for a look into the store must be able to say that another has none. Telling costs a handful of short
messages to the store's server, once a run; looking costs one while others have yet to tell, and two when all have.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import torch.distributed as dist

from trimtab.text import listed
from trimtab.torch.meeting import Store, default_store
from trimtab.torch.ranks import Ranks

PATIENCE_S: Final = 30.0
"""Seconds for the others to tell. Ranks that reduce gradients together have all told before any of them ends a step, so
that only one without a `Run` is waited for; less than any timeout by which torch.distributed ends it meanwhile."""

_LOOK_INTERVAL_S: Final = 0.01

_num_told: Final[Counter[str]] = Counter()
"""Runs in which this process has told its settings, by group: all ranks of a group train in the same ones in turn."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the ranks of a run have of something.

    Attributes:
        lacking: Ranks that have none.
        silent: Ranks that have not told in time: they have begun no run.
        unlike: Settings, by name, that are not the same on all ranks which have one.
    """

    lacking: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every rank has it."""
        return not (self.lacking or self.silent)

    def who_has_none(self, of: str) -> str:
        """The ranks without, in words; `of` is what they lack."""
        without = f"{_ranks(self.lacking)} no {of}" if self.lacking else ""
        silent = f"{_ranks(self.silent)} begun no Run" if self.silent else ""
        return " and ".join(part for part in (without, silent) if part)


class ToldSettings:
    """The settings of one run's ranks.

    Args:
        ranks: The ranks; more than one.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        members = dist.get_process_group_ranks(ranks.group)
        self._group = sha256(repr(members).encode()).hexdigest()[:16]
        self._number: int | None = None
        self._has_told = False

    @property
    def has_told(self) -> bool:
        """Whether this rank has told its own."""
        return self._has_told

    def tell(self, settings: Mapping[str, Mapping[str, object] | None]) -> None:
        """Tells what this rank has. Never waits for a rank or raises.

        Args:
            settings: By what they are of, the same keys on every rank.
        """
        self._has_told = True
        try:
            store = default_store()
            if store is None:
                return
            self._number = self._next(store)
            spelled = {of: _spelled(values) for of, values in settings.items()}
            # What a rank has stands there before it is counted.
            store.set(self._key("rank", self._ranks.rank), json.dumps(spelled))
            for of, values in spelled.items():
                store.add(self._key("like", of, _digest(values)), 1)
            store.add(self._key("told"), 1)
        except Exception:  # noqa: BLE001 - a store whose host is gone: the run ends elsewhere, if it does
            self._number = None

    def agreed(self, of: str, settings: Mapping[str, object], *, patience_s: float = 0.0) -> Agreement | None:
        """What the ranks have of something that this rank has.

        Args:
            of: What: a key of what was told.
            settings: This rank's, as they were told.
            patience_s: Seconds to wait for ranks that have not told yet.

        Returns:
            The same on every rank that gets an answer. None: some have not told yet, and there was no time to wait.
        """
        if self._number is None:
            return Agreement()  # nobody could tell anything: what is summed says itself whether it fits
        try:
            store = default_store()
            if store is None:
                return Agreement()
            found = self._look(store, of, settings, until=time.monotonic() + patience_s, waits=patience_s > 0)
            if found is None:
                return None
            # Who asks in time and who asks too late must not go apart: the first answer is everybody's.
            answer = json.dumps([found.lacking, found.silent, found.unlike])
            first = store.compare_set(self._key("answer", of), "", answer)
            lacking, silent, unlike = json.loads(first)
            return Agreement(tuple(lacking), tuple(silent), tuple(unlike))
        except Exception:  # noqa: BLE001 - as above
            return Agreement()

    def end(self) -> None:
        """Says that the run has ended here: a rank that begins later is not in it. What trains again tells again."""
        if self._number is not None and dist.is_initialized():
            with suppress(Exception):  # a store whose host is gone
                store = default_store()
                if store is not None:
                    store.set(self._key("ended"), "")
        self._number = None
        self._has_told = False

    # Within.

    def _look(
        self, store: Store, of: str, settings: Mapping[str, object], *, until: float, waits: bool
    ) -> Agreement | None:
        world_size = self._ranks.world_size
        while store.add(self._key("told"), 0) < world_size:
            if time.monotonic() >= until:
                return self._asked_one_by_one(store, of) if waits else None
            time.sleep(_LOOK_INTERVAL_S)
        if store.add(self._key("like", of, _digest(_spelled(settings))), 0) == world_size:
            return Agreement()
        return self._asked_one_by_one(store, of)

    def _asked_one_by_one(self, store: Store, of: str) -> Agreement:
        lacking, silent, told = [], [], []
        for rank in range(self._ranks.world_size):
            key = self._key("rank", rank)
            if not store.check([key]):
                silent.append(rank)
                continue
            values = json.loads(store.get(key))[of]
            if values is None:
                lacking.append(rank)
            else:
                told.append(values)
        return Agreement(tuple(lacking), tuple(silent), tuple(_unlike(told)))

    def _next(self, store: Store) -> int:
        """The number of the run that begins: what another rank alone has trained and ended before is passed by."""
        number = _num_told[self._group] + 1
        while store.check([self._key("ended", number=number)]):
            number += 1
        _num_told[self._group] = number
        return number

    def _key(self, *parts: Any, number: int | None = None) -> str:
        of_run = self._number if number is None else number
        return " ".join(map(str, ("trimtab settings", self._group, of_run, *parts)))


def _spelled(values: Mapping[str, object] | None) -> dict[str, str] | None:
    return None if values is None else {name: repr(value) for name, value in values.items()}


def _digest(values: dict[str, str] | None) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()[:16]


def _unlike(told: list[dict[str, str]]) -> list[str]:
    names = {name: None for values in told for name in values}
    return [name for name in names if len({values.get(name) for values in told}) > 1]


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {listed(map(str, ranks), most=8)} have"
