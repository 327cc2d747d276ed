"""Where two runs differ: plain values that a report draws and a program reads.

Enters: nothing but numbers and text. Leaves: `Difference` and `Differences`. Invariant: standard library only, and
`to_dict` is ready for strict JSON.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from trimtab.values import json_number

ROW_PREFIX: Final = "rows."
"""Before the name of a column of row records: `num_tokens` is one of steps, `rows.num_tokens` one of rows."""

Cell = float | int | str | bool | None
"""What one run holds; None where it holds nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two runs differ.

    Attributes:
        step: The optimizer step.
        column: Of a step `step`, `rank` (these differ where one of the runs does not hold it), `loss`, `num_tokens`,
            `grad_norm`, `lr`, `reason`, `stepped`, `clipped`, `loss_scale`, `num_skipped_micros`, `num_skipped_tokens`;
            of a row record `rows.rank`, `rows.micro`, `rows.row`, `rows.loss_sum`, `rows.num_tokens`, `rows.verdict`.
        a: What the first run holds there; None where it holds nothing.
        b: What the second one holds.
        rank: The rank; None where the whole step is missing.
        micro: The micro-batch inside the step; None for a column of steps.
        row: The dataset row, of the first run where it has one; None likewise.
    """

    step: int
    column: str
    a: Cell
    b: Cell
    rank: int | None = None
    micro: int | None = None
    row: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The difference as it stands in JSON; a number that is not finite is "nan", "inf" or "-inf"."""
        cells = {name: _json_cell(getattr(self, name)) for name in ("a", "b")}
        return {
            "step": self.step,
            "column": self.column,
            "micro": self.micro,
            "rank": self.rank,
            "row": self.row,
            **cells,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Lack:
    """Steps that one of two runs does not hold and the other one does.

    Attributes:
        run: "a" or "b", the one that lacks them.
        first: The first of them.
        last: The last of them.
        num_steps: How many they are.
        is_end: Whether they come after all that it holds.
    """

    run: str
    first: int
    last: int
    num_steps: int
    is_end: bool

    def to_dict(self) -> dict[str, Any]:
        """The steps as they stand in JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Differences:
    """What `compare_bits` found.

    Attributes:
        a: The log of the first run.
        b: The log of the second one.
        num_steps: Steps that both hold.
        first: The first difference: the lowest step, and there the first column; None where there is none.
        columns: Every column that was compared, in the order in which a difference is named, and the first step at
            which it differs; None where it does not.
        notices: What was not compared, and what a reader of the logs should know.
        lacks: The steps that one of them alone holds.
        first_in_both: The first difference in a step that both hold; None where there is none.
    """

    a: str
    b: str
    num_steps: int
    first: Difference | None
    columns: dict[str, int | None]
    notices: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()
    first_in_both: Difference | None = None

    @property
    def same(self) -> bool:
        """Whether the runs are the same, bit for bit, in everything that was compared."""
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        """The document of `trimtab compare --json`."""
        return {
            "version": 1,
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "num_steps": self.num_steps,
            "first": None if self.first is None else self.first.to_dict(),
            "lacks": [lack.to_dict() for lack in self.lacks],
            "first_in_both": None if self.first_in_both is None else self.first_in_both.to_dict(),
            "columns": dict(self.columns),
            "notices": list(self.notices),
        }


def _json_cell(cell: Cell) -> Cell:
    return json_number(cell) if isinstance(cell, float) else cell
