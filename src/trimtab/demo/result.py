"""What a demo came to: plain values, ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.demo.named import Check
from trimtab.demo.run_log import Skip
from trimtab.findings import Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What a demo came to.

    Attributes:
        out: The folder it left.
        run_id: The run's id.
        run_folder: The run's log.
        seed: What decided everything.
        guarded: Whether the guard was on.
        dead_since: First step of the end in non-finite losses; None for a run that survived.
        nonfinite_parameters: Names of parameters that ended not finite, the planted embedding left aside.
        skips: Micro-batches that the guard left out.
        checks: One a planted row, by step.
        findings: What `rewind` says of the run folder.
    """

    out: Path
    run_id: str
    run_folder: Path
    seed: int
    guarded: bool
    dead_since: int | None
    nonfinite_parameters: tuple[str, ...]
    skips: tuple[Skip, ...]
    checks: tuple[Check, ...]
    findings: Findings

    @property
    def survived(self) -> bool:
        """Whether the run ended with finite weights."""
        return self.dead_since is None and not self.nonfinite_parameters

    @property
    def complaints(self) -> list[str]:
        """What did not come out as it must; a sentence each.

        Every planted row that the loss can show is found and named first; a guarded run survives, an unguarded dies.
        """
        found = [check.complaint for check in self.checks if not check.passed]
        if self.guarded and not self.survived:
            since = f" at step {self.dead_since}" if self.dead_since is not None else ""
            found.append(f"the guard was on, and the run died{since}; its log is {self.run_folder}")
        if not self.guarded and self.survived:
            found.append(f"without a guard the run was to die, and it did not; its log is {self.run_folder}")
        return found

    @property
    def passed(self) -> bool:
        """Whether there is no complaint."""
        return not self.complaints

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `demo --json`; strict JSON."""
        return {
            "version": 1,
            "out": str(self.out),
            "run_id": self.run_id,
            "run_folder": str(self.run_folder),
            "seed": self.seed,
            "guarded": self.guarded,
            "survived": self.survived,
            "dead_since": self.dead_since,
            "passed": self.passed,
            "planted": [check.to_dict() for check in self.checks],
            "skipped": [{"step": skip.step, "micro": skip.micro, "reason": skip.reason} for skip in self.skips],
            "report": self.findings.to_dict(),
        }
