"""What a conversion wrote: a plain value, drawn by the command line.

Enters: nothing. Leaves: `Conversion`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Target = Literal["rewind.jsonl", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was written of a log, and what the other format could not hold.

    Attributes:
        source: Path that was read.
        format: What was written: "rewind.jsonl", or "run" for run folders.
        paths: The file, or a run folder for each run of the log, in their order.
        num_attempts: Attempts of all of them.
        num_micro_batches: Micro-batches; in a `rewind.jsonl` each is a line.
        num_rows: Row records.
        num_steps: Step records; a `rewind.jsonl` holds none.
        num_events: Events; likewise.
        notices: What a reader should know: of the choice of the log, what was left out of it, what was lost.
    """

    source: str
    format: Target
    paths: tuple[str, ...]
    num_attempts: int
    num_micro_batches: int
    num_rows: int
    num_steps: int = 0
    num_events: int = 0
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `convert --json`; strict JSON."""
        return {
            "version": 1,
            "source": self.source,
            "format": self.format,
            "paths": list(self.paths),
            "num_attempts": self.num_attempts,
            "num_micro_batches": self.num_micro_batches,
            "num_rows": self.num_rows,
            "num_steps": self.num_steps,
            "num_events": self.num_events,
            "notices": list(self.notices),
        }
