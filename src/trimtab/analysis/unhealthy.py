"""The stretches of a run in which a checkpoint is none to go on from, by what its watch finds.

    evaluations 3.6, 3.9, 4.5, 5.0 at steps 40, 80, 120, 160    found at 160, all was well at 40: steps 41 to the end

Enters: the findings that stand, look by look. Leaves: an `Unhealthy` for each that marks checkpoints: since when it may
have been so, and when it was over. Invariant: what is over speaks against no checkpoint that was saved afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.watched import KINDS, WatchFinding


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """A finding that speaks against checkpoints.

    Attributes:
        finding: As it was said.
        since_step: Last step at which it was known not to be so; the one before it was said where nobody knows.
        over_at: The step at which it was over; None where it stood at the end.
    """

    finding: WatchFinding
    since_step: int
    over_at: int | None = None

    def holds(self, step: int) -> bool:
        """Whether a checkpoint of a step was saved while it was so, or may have been."""
        return step > self.since_step and (self.over_at is None or step < self.over_at)

    @property
    def name(self) -> str:
        """What it is in a few words: `collapse in blocks.1.gate, found at step 200`."""
        return f"{self.finding.topic}, found at step {self.finding.step}"


class Stretches:
    """Follows the findings that mark checkpoints, while a run is judged."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], Unhealthy] = {}
        self._over: list[Unhealthy] = []

    def look(self, step: int, standing: Iterable[WatchFinding]) -> None:
        """Takes what stands behind a step; spikes, which `trimtab.analysis.trouble` knows, are left to that."""
        now: dict[tuple[object, ...], WatchFinding] = {}
        for finding in standing:
            if finding.marks_unhealthy and not KINDS[finding.kind].told_by_spikes:
                now.setdefault((finding.kind, finding.since_step, finding.figures.get("name")), finding)
        for key in [key for key in self._open if key not in now]:
            one = self._open.pop(key)
            self._over.append(Unhealthy(one.finding, one.since_step, step))
        for key, finding in now.items():
            if key not in self._open:
                self._open[key] = Unhealthy(finding, _since(finding))

    def found(self, said: Sequence[WatchFinding] = ()) -> tuple[Unhealthy, ...]:
        """All of them by the step at which they began.

        Args:
            said: What a watch said and the log alone does not show: from there on the checkpoints say so themselves.
        """
        told = (Unhealthy(one, _since(one), one.step) for one in said if one.marks_unhealthy)
        return tuple(sorted((*self._over, *self._open.values(), *told), key=lambda one: one.since_step))


def _since(finding: WatchFinding) -> int:
    return max(0, finding.step - 1) if finding.since_step is None else finding.since_step
