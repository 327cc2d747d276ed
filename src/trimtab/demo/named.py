"""Planted against named: what `rewind` says of each planted row, asked of the log alone, step by step.

In go the plants and the run folder, out come `Check`s and the table that the demo prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.analysis import rewind
from trimtab.demo.plant import NEEDED, Plant
from trimtab.findings import Findings
from trimtab.values import json_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One planted row and what the log said of its step.

    Attributes:
        plant: What was planted.
        finding: Kind of the finding that covers the step; None if `rewind` found nothing there.
        first_row: The row that `rewind --step` lists first; None if it lists none.
        loss: The planted row's mean loss; None if it is not listed.
        share: The planted row's share of the step's loss, 0..1; None if it is not listed.
    """

    plant: Plant
    finding: str | None
    first_row: int | None
    loss: float | None
    share: float | None

    @property
    def named_first(self) -> bool:
        """Whether the planted row stands first."""
        return self.first_row == self.plant.row

    @property
    def passed(self) -> bool:
        """Whether the log shows what the loss alone must show; always true for a kind that the loss does not show."""
        return self.plant.kind not in NEEDED or (self.named_first and self.finding is not None)

    @property
    def complaint(self) -> str:
        """What is wrong, for a check that did not pass."""
        plant = self.plant
        found = f"a finding ({self.finding})" if self.finding is not None else "no finding"
        first = f"row {self.first_row}" if self.first_row is not None else "no row"
        return (
            f"row {plant.row}, planted as {plant.kind} at step {plant.step}, was to be a finding and named first; "
            f"rewind has {found} there and names {first} first. "
            f"Look at the step yourself: trimtab rewind --step {plant.step}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON; a loss that is not finite is a string."""
        return {
            "step": self.plant.step,
            "row": self.plant.row,
            "kind": self.plant.kind,
            "finding": self.finding,
            "first_row": self.first_row,
            "named_first": self.named_first,
            "loss": json_number(self.loss),
            "share": json_number(self.share),
        }


def check_plants(plants: Sequence[Plant], run_folder: Path, findings: Findings) -> list[Check]:
    """Asks the log about every planted row's step.

    Args:
        plants: What was planted.
        run_folder: The run folder.
        findings: What `rewind` found in it.
    """
    return [_check(plant, run_folder, findings) for plant in plants]


def _check(plant: Plant, run_folder: Path, findings: Findings) -> Check:
    covering = [spike.kind for spike in findings.spikes if spike.first <= plant.step <= spike.last]
    table = rewind(run_folder, step=plant.step).rows
    own = next((row for row in table if row.row == plant.row), None)
    return Check(
        plant=plant,
        finding=covering[0] if covering else None,
        first_row=table[0].row if table else None,
        loss=own.loss if own is not None else None,
        share=own.share if own is not None else None,
    )


def draw_checks(checks: Sequence[Check], texts: Sequence[str]) -> list[str]:
    """The table, as lines.

    Args:
        checks: One a planted row.
        texts: What each row says, parallel, ready to print.
    """
    lines = [
        f"{'step':>6}  {'planted':>7}  {'kind':<9}  {'finding':<9}  {'named first':<11}  {'loss':>6}  {'share':>6}"
    ]
    for check, text in zip(checks, texts, strict=True):
        named = f"row {check.first_row}" if check.first_row is not None else "none"
        loss = f"{check.loss:.2f}" if check.loss is not None else "-"
        share = f"{check.share:.1%}" if check.share is not None else "-"
        plant = check.plant
        left = f"{plant.step:>6}  {plant.row:>7}  {plant.kind:<9}  {check.finding or '-':<9}"
        lines.append(f"{left}  {named:<11}  {loss:>6}  {share:>6}")
        lines.append(f"{'':8}{text}")
    return lines
