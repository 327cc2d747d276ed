"""What a check after loading is given: what is known around the checkpoint, and the first steps after it.

A check is one file with a function `judge(around, seen) -> Judged | None`, and its place in
`trimtab.first_steps.observer.CHECKS`; None on a rank for which another one speaks. Pure values, of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.resume.before import Before
from trimtab.resume.breaks import Break, SeenStep

Rows = NDArray[np.int64]

NO_LOG: Final = "no log holds the steps before the checkpoint"


def _no_rows() -> Rows:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsAround:
    """What a rank recorded around a checkpoint.

    Attributes:
        before: (P,) int64 rows up to the checkpoint, in the order trained on.
        after: (A,) int64 rows after it, of an earlier attempt; none where none went past it.
        before_steps: (P,) int64, the step of each row in `before`.
        after_steps: (A,) int64, the step of each row in `after`.
        from_start: Whether `before` begins with the run's first row.
        to_checkpoint: Whether `before` ends with the checkpoint's last row: a run that was killed may have lost it.
        epochs: Where epochs begin in `before` (`epoch_begins`), if it begins with the run.
        num_rows: Rows of the dataset; None where nobody knows.
        num_ranks: Ranks that share them.
    """

    before: Rows = field(default_factory=_no_rows)
    after: Rows = field(default_factory=_no_rows)
    before_steps: Rows = field(default_factory=_no_rows)
    after_steps: Rows = field(default_factory=_no_rows)
    from_start: bool = False
    to_checkpoint: bool = False
    epochs: tuple[int, ...] = (0,)
    num_rows: int | None = None
    num_ranks: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to compare with."""
        return not self.before.size and not self.after.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the first resumed steps of a rank are compared with.

    Attributes:
        step: The first of them.
        before: What the state tells.
        recorded: Steps after the checkpoint in the attempt that saved it, where that went past it.
        rows: Rows around the checkpoint, of this rank.
        rank: Whose they are.
        was_rebased: Whether another learning rate than the checkpoint's was asked for.
        no_rows_because: Why `rows` is empty, where it is.
    """

    step: int
    before: Before = field(default_factory=Before)
    recorded: tuple[SeenStep, ...] = ()
    rows: RowsAround = field(default_factory=RowsAround)
    rank: int = 0
    was_rebased: bool = False
    no_rows_because: str = NO_LOG


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """The first resumed steps of a rank.

    Attributes:
        steps: They, in order; at least one.
        rows: (N,) int64 rows that they trained on, in order.
    """

    steps: tuple[SeenStep, ...]
    rows: Rows = field(default_factory=_no_rows)


class Judged(NamedTuple):
    """What one check gives.

    Attributes:
        what: What was compared, in a word.
        breaks: Where it does not go on.
        left_out: Why it was not compared, or cannot be told; None where it was, and goes on but for `breaks`.
        remark: What its reader should know of what it was compared with, if anything.
    """

    what: str
    breaks: Sequence[Break] = ()
    left_out: str | None = None
    remark: str | None = None
