"""What the checks after loading look at, and what they find: a `SeenStep`, and a `Break`.

Enters: numbers. Leaves: plain values for a line and for the log's event. Pure: no clock, no file, no log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from trimtab.values import json_number

BreakKind = Literal[
    "loss_rose",
    "loss_nonfinite",
    "loss_dropped",
    "loss_differs",
    "all_skipped",
    "lr_off_by_one",
    "lr",
    "rows_replayed",
    "rows_repeated",
    "rows_skipped",
    "rows_differ",
]
Severity = Literal["critical", "warning", "notice"]

NUM_JUDGED: Final = 8
"""First resumed steps that are looked at. On the published curves in `tests/data/curves`, cut after every step, 8 steps
against the 32 before gave 0 rises and 0 drops in 131,000 cuts where the run went on, one fine-tune aside (see
`trimtab.resume.losses.judge_losses`); 4 steps gave 4 and 3."""

NUM_REMEMBERED: Final = 32
"""Steps before the checkpoint that they are compared with. With 8 behind it a line is so unsure of where it goes that a
drop must be 5 times the noise to be told; with 32, twice."""


class SeenStep(NamedTuple):
    """One optimizer step, as the rules look at it.

    Attributes:
        step: 1-based optimizer step.
        loss: What the run reported; None where nobody knows it, NaN or infinite as it was.
        lr: Learning rate of the first parameter group; None where unknown.
        is_skipped: Whether the guard left out all of it.
    """

    step: int
    loss: float | None = None
    lr: float | None = None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where the resumed run does not continue the one before.

    Attributes:
        kind: What.
        severity: "critical" (the run is not the one that was saved), "warning", or "notice" (it may be meant so).
        step: The step at which it shows.
        text: What is to be said, without a full stop.
        found: The number that was found, where there is one.
        expected: The number that would have continued the run, likewise.
        num_rows: Rows that are skipped or repeated, likewise.
    """

    kind: BreakKind
    severity: Severity
    step: int
    text: str
    found: float | None = None
    expected: float | None = None
    num_rows: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The facts of the log's event; strict JSON."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "step": self.step,
            "text": self.text,
            "found": json_number(self.found),
            "expected": json_number(self.expected),
            "num_rows": self.num_rows,
        }
