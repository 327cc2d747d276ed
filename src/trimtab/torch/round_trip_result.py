"""`RoundTrip`: what came of a checkpoint that was loaded again, in one line and in the log.

Enters: what was found. Leaves: a plain value, the line that says it, and an event of the run. Invariant: telling never
raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.notices import say, warn
from trimtab.resume.round_trip import ROUND_TRIP_EVENT, RoundTripFacts
from trimtab.text import listed, plain
from trimtab.torch.checkpoint_ranks import spelled_error
from trimtab.torch.probe import Probe

_LOG: Final = "checkpoint"

_MOST_SAID: Final = 3
"""Differences that the line names; the log has more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip(RoundTripFacts):
    """What became of a checkpoint that was loaded again.

    Attributes:
        path: The checkpoint.
        name: Name of its folder, in plain ASCII.
        step: Its step; None where it could not be read.
        same: Whether everything that was compared is the same to the last bit, on every rank.
        differences: What is not, a sentence each, the first ten; or why it could not be loaded.
        num_differences: How many there are.
        parts: What was compared: "model", "optimizer", "step", and where given "scheduler", "scaler", "loss"; none
            where it could not be loaded.
        manifest_crc32: The checksum of the manifest that was loaded; None where it could not be read.
        probe: What the loaded model would say next; None where no ids were given, or it could not answer.
        probe_problem: Why it could not answer; None where it did, or was not asked.
    """

    path: Path
    probe: Probe | None = None

    def __str__(self) -> str:
        """One line that says what came of it."""
        where = f"round trip of {plain(str(self.path))}"
        asked = self.probe.remark if self.probe is not None else self.probe_problem
        probe = f"; what it would say next: {asked}" if asked is not None else ""
        if self.same:
            return f"{where}: {listed(self.parts)} as loaded are the training's to the last bit{probe}"
        told = "; ".join(self.differences[:_MOST_SAID])
        more = self.num_differences - len(self.differences[:_MOST_SAID])
        found = "what was loaded is not the training" if self.parts else "it could not be loaded"
        return f"{where}: {found}: {told}{f'; and {more} more' if more > 0 else ''}{probe}"


def tell(result: RoundTrip, run: Any) -> None:
    """One line, and an event in the log of the run. Never raises."""
    (say if result.same and result.probe_problem is None else warn)(_LOG, str(result))
    record = getattr(run, "event", None)
    if not callable(record):
        return
    try:
        record(ROUND_TRIP_EVENT, **result.to_facts())
    except Exception as error:  # noqa: BLE001 - somebody else's, and the result stands
        warn(_LOG, f"the log of the run does not hold this round trip: {spelled_error(error)}")
