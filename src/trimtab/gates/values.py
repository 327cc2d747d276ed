"""What the gates say of a chunk: plain values, drawn by a report.

Enters: nothing. Leaves: `Judged`, which one gate says, and `GateReport`, which holds them all by name. Standard library
only. Invariant: a gate that nothing is known about has not passed, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

GateStatus = Literal["passed", "failed", "unknown", "inapplicable"]
"""unknown: the artefacts do not hold what it needs. inapplicable: the run has none of what it looks at."""

GateName = Literal[
    "finished",
    "nonfinite_steps",
    "learning_rate",
    "router_z",
    "router_load",
    "dead_experts",
    "populations",
    "eval_streak",
    "watch",
    "checkpoint_written",
    "checkpoint_whole",
    "checkpoint_healthy",
    "round_trip",
    "generation_probe",
]

GATE_NAMES: Final[tuple[GateName, ...]] = get_args(GateName)
"""In the order in which they are told: of the log, then of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a gate, by whoever judged it; its name is given by the tables of gates.

    Attributes:
        status: Whether it passed.
        text: The figures behind it in one sentence, plain ASCII, without a full stop; of a failed one what to do next,
            of an unknown one how to make it known.
        figures: The same for a program, JSON-ready; numbers that are not finite are spelled as text.
    """

    status: GateStatus
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def named(self, name: GateName) -> Gate:
        """What came of the gate of that name."""
        return Gate(self.status, self.text, self.figures, name=name)


@dataclass(frozen=True, slots=True)
class Gate(Judged):
    """One gate, judged.

    Attributes:
        name: Which; the rest is as of `Judged`.
    """

    name: GateName = field(kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of a gate."""
        return {"name": self.name, "status": self.status, "text": self.text, "figures": dict(self.figures)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The stretch of a run that the gates are about: the steps since it last stopped in good order.

    Attributes:
        first_step: Its first optimizer step (1-based).
        last_step: Its last one, as the log has it.
        num_steps: Steps of it that were recorded; of what was trained twice the later attempt counts.
        attempts: The attempts of the run that it was trained in, ascending: more than one where it was interrupted.
    """

    first_step: int
    last_step: int
    num_steps: int
    attempts: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of a chunk."""
        return {
            "first_step": self.first_step,
            "last_step": self.last_step,
            "num_steps": self.num_steps,
            "attempts": list(self.attempts),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """All gates of a chunk.

    Attributes:
        run_id: The run; None where its log names none.
        source: The log that was read.
        chunk: What was judged.
        gates: One each, in the order of `GATE_NAMES`.
        checkpoint: Path of the checkpoint that was looked at; None where there is none.
        notices: What a user should know beside, a sentence each; in plain ASCII.
    """

    run_id: str | None
    source: str
    chunk: Chunk
    gates: tuple[Gate, ...]
    checkpoint: str | None = None
    notices: tuple[str, ...] = ()

    def with_status(self, status: GateStatus) -> tuple[Gate, ...]:
        """The gates of which that came."""
        return tuple(gate for gate in self.gates if gate.status == status)

    def passed(self, *, strict: bool = False) -> bool:
        """Whether the next chunk may start: no gate failed; with `strict` none is unknown either."""
        return not self.with_status("failed") and not (strict and self.with_status("unknown"))

    def to_dict(self, *, strict: bool = False) -> dict[str, Any]:
        """The JSON document of `trimtab gate --json`."""
        return {
            "version": 1,
            "run_id": self.run_id,
            "source": self.source,
            "passed": self.passed(strict=strict),
            "strict": strict,
            "chunk": self.chunk.to_dict(),
            "checkpoint": self.checkpoint,
            "gates": [gate.to_dict() for gate in self.gates],
            "notices": list(self.notices),
        }
