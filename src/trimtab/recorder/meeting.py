"""How the ranks of one run learn where it is recorded: what rank 0 says, and what carries it.

Enters: the word of rank 0. Leaves: the same on every other rank, once it has come. Standard library only; what carries
the word where torch.distributed is used is `trimtab.torch.meeting`. Invariant: no rank waits for another here.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class Word(NamedTuple):
    """What rank 0 tells.

    Attributes:
        run_id: The run.
        attempt: Which attempt of it.
        folder: The run folder on rank 0, absolute.
    """

    run_id: str
    attempt: int
    folder: str


class Meeting(Protocol):
    """How the ranks above 0 learn from rank 0 where one run is recorded. No method waits for another rank, or raises.

    It begins with the first call of `tell` or `heard`, and by these the runs of a process are counted: a rank calls one
    of them in each run in which it trains, and in no other.

    Attributes:
        rank: This process's place among the ranks.
        world_size: How many they are.
    """

    rank: int
    world_size: int

    def tell(self, word: Word) -> None:
        """Says to all ranks where the run is; `NOT_RECORDED`: that it is nowhere. Rank 0 calls it once."""

    def tell_end(self) -> None:
        """Says that the run has ended: whoever trains for the first time from now on trains in another one."""

    def heard(self, *, at_end: bool = False) -> Word | None:
        """What rank 0 said; None if it has not said anything yet.

        Args:
            at_end: Whether this rank is at its end: then a run that had ended before is taken for its own, if rank 0
                has begun none since.
        """


NOT_RECORDED: Final = Word("", 0, "")
"""What rank 0 tells if it does not record: then no rank does."""
