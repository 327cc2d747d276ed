"""How the ranks of a run act as one where they save and load: one decides, or all know of the one that failed.

Enters: what to do on this rank. Leaves: the same value, or the same error, on every rank. Invariant: no rank waits for
another that has failed: each tells before any goes on.

What travels are small objects, never tensors of the model, through a gloo group of the Checkpointer's own: so it works
beside NCCL, waits for no device, and cannot mix with the collectives of a training that goes on while a thread saves. A
rank that is lost holds the others until that group's timeout, which is torch's default, 30 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeVar

import torch.distributed as dist

from trimtab.errors import CheckpointError, TrimtabError, UsageError
from trimtab.text import plain
from trimtab.torch.ranks import Ranks

T = TypeVar("T")

_LOST: Final = "another rank has ended, or did not answer in time: see what it said last"

_Told = tuple[str, str]
"""Kind and text of an error on its way to the other ranks."""


class RanksTogether:
    """The ranks that save and load one checkpoint; alone, everything here is a plain call.

    Attributes:
        rank: This process's place among them.
        world_size: How many they are.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        """Looks at the group; the own one is made when it is first needed, which every rank then waits for.

        Args:
            process_group: The ranks that train together; None: the default group where torch.distributed is
                initialised, else this process alone.

        Raises:
            UsageError: This process is not in the group.
        """
        self._ranks, self._process_group = Ranks.of(process_group), process_group
        self._group: dist.ProcessGroup | None = None
        self._is_lost = False
        self.rank = self._ranks.rank
        self.world_size = self._ranks.world_size

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks, picks and commits for all."""
        return self.rank == 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The gloo group of these ranks' own; None when alone. All of them have to ask for it the first time."""
        if self._ranks.alone:
            self._ranks.refuse_change(self._process_group, made="Checkpointer")
            return None
        if self._group is None:
            ranks = dist.get_process_group_ranks(self._ranks.group)
            # Making a part of all processes into a group is otherwise a call that all processes have to make.
            only_these = self._process_group is not None and len(ranks) < dist.get_world_size()
            self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=only_these)
        return self._group

    def from_first(self, make: Callable[[], T]) -> T:
        """What rank 0 made, on every rank; every rank waits for it.

        Raises:
            CheckpointError: Rank 0 could not, as anywhere else `UsageError`; the same text on every rank.
        """
        group = self.group
        if group is None:
            return make()
        told: list[tuple[T | None, _Told | None]] = [(None, None)]
        own_error: Exception | None = None
        if self.is_first:
            try:
                told = [(make(), None)]
            except Exception as error:  # noqa: BLE001 - whatever it was, the others wait for a word
                own_error = error
                told = [(None, _told(error))]
        self._meet(lambda: dist.broadcast_object_list(told, group_src=0, group=group))
        value, failure = told[0]
        if failure is not None:
            _raise_alike(failure, own_error)
        return value  # type: ignore[return-value]

    def of_all(self, make: Callable[[], T]) -> list[T]:
        """What every rank made, in the order of the ranks; each waits for the slowest.

        Raises:
            CheckpointError: One of them could not, as anywhere else `UsageError`: the first such rank's text, on all.
        """
        group = self.group
        if group is None:
            return [make()]
        own: tuple[T | None, _Told | None]
        own_error: Exception | None = None
        try:
            own = (make(), None)
        except Exception as error:  # noqa: BLE001 - as above
            own_error = error
            own = (None, _told(error, rank=self.rank))
        gathered: list[tuple[T | None, _Told | None]] = [(None, None)] * self.world_size
        self._meet(lambda: dist.all_gather_object(gathered, own, group=group))
        for _, failure in gathered:
            if failure is not None:
                _raise_alike(failure, own_error)
        return [value for value, _ in gathered]  # type: ignore[misc]

    def alike(self, make: Callable[[], Mapping[str, object]], *, call: str) -> None:
        """Refuses a call that the ranks did not make alike.

        Args:
            make: What has to be the same on every rank, by what to call it.
            call: The method, for the message.

        Raises:
            UsageError: It is not; the same text on every rank. Or `make` raised it.
            CheckpointError: `make` raised it.
        """
        told = self.of_all(make)
        for rank, one in enumerate(told):
            for name, value in one.items():
                if value != told[0][name]:
                    raise UsageError(
                        f"The ranks {call} different things: for {name} rank {rank} has {value!r}, and rank 0 "
                        f"{told[0][name]!r}. Call {call} on every rank after the same step, with the same arguments."
                    )

    def _meet(self, talk: Callable[[], None]) -> None:
        """Talks with the other ranks; once one was lost, nobody is waited for any more."""
        if self._is_lost:
            raise CheckpointError(_LOST)
        try:
            talk()
        except RuntimeError as error:  # what gloo says is of sockets, and not of what ended the other rank
            self._is_lost = True
            raise CheckpointError(_LOST) from error


def _told(error: Exception, *, rank: int | None = None) -> _Told:
    kind = "usage" if isinstance(error, UsageError) else "checkpoint"
    text = str(error) if isinstance(error, (UsageError, CheckpointError)) else spelled_error(error)
    return kind, text if rank is None else f"rank {rank}: {text}"


def _raise_alike(told: _Told, own_error: Exception | None) -> NoReturn:
    kind, text = told
    if isinstance(own_error, TrimtabError) and not isinstance(own_error, (UsageError, CheckpointError)):
        raise own_error  # a guard that locked up, which does so on every rank
    if kind == "usage":
        raise UsageError(text) from own_error
    raise CheckpointError(text) from own_error


def spelled_error(error: BaseException) -> str:
    """An error of somebody else's as one line: what the disk says in its own words, others with their kind."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{plain(str(error.filename))}: " if error.filename else ""
        return f"{where}{error.strerror}"
    text = str(error).strip()
    # torch appends a stack of C++ frames.
    return f"{type(error).__name__}: {plain(text.splitlines()[0])}" if text else type(error).__name__
