"""What a state tells of the steps before it.

Enters: steps as numbers, or an entry of a saved state. Leaves: plain values for a state, or a `Before`. Invariant: a
state is refused as a whole before anything of it is taken over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.resume.breaks import NUM_REMEMBERED, SeenStep
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.values import json_number, nonfinite_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a state tells of the steps before it: enough to judge losses and rates by where the log was lost.

    Attributes:
        steps: The last `NUM_REMEMBERED` steps, oldest first.
        attempt: Attempt of the run that saved it; None where nothing was recorded.
        num_ranks: Ranks that trained.
        next_lr: Learning rate that the optimizer had when it was saved; None where nobody knows.
    """

    steps: tuple[SeenStep, ...] = ()
    attempt: int | None = None
    num_ranks: int = 1
    next_lr: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a loss that is not finite is a string."""
        return {
            "steps": [[seen.step, json_number(seen.loss), seen.lr, seen.is_skipped] for seen in self.steps],
            "attempt": self.attempt,
            "num_ranks": self.num_ranks,
            "next_lr": self.next_lr,
        }

    @classmethod
    def from_dict(cls, state: Any) -> Before:
        """What `to_dict` gave; `UsageError` for anything else."""
        names = ("steps", "attempt", "num_ranks", "next_lr")
        steps, attempt, num_ranks, next_lr = read_entries(state, names, where="what came before")
        if not isinstance(steps, list) or len(steps) > NUM_REMEMBERED:
            raise damaged(f"the steps before are not a list of {NUM_REMEMBERED} at most")
        return cls(
            steps=tuple(map(_saved_step, steps)),
            attempt=None if attempt is None else read_count(attempt, name="attempt"),
            num_ranks=max(1, read_count(num_ranks, name="num_ranks")),
            next_lr=_saved_number(next_lr, name="next_lr"),
        )


def _saved_step(entry: Any) -> SeenStep:
    if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[3], bool):
        raise damaged("one of the steps before is not a list of step, loss, lr and whether it was skipped")
    step, loss, lr, is_skipped = entry
    spelled = nonfinite_number(loss)
    number = _saved_number(loss, name="loss") if spelled is None else spelled
    return SeenStep(read_count(step, name="step"), number, _saved_number(lr, name="lr"), is_skipped)


def _saved_number(value: Any, *, name: str) -> float | None:
    if value is not None and not is_finite(value):
        raise damaged(f"{name} is no number")
    return None if value is None else float(value)
