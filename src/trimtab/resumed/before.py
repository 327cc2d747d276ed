"""What a run remembers of its last steps, and what a state tells of them.

Enters: steps as they are recorded, whose numbers may still be on their way from a device; or an entry of a saved state.
Leaves: `SeenStep`s, plain numbers. Invariant: a state is refused as a whole before anything of it is taken over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trimtab.resume.continuity import NUM_REMEMBERED, SeenStep
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.values import STEP_CODE, StepRow, json_number

_NO_LOSS: Final = frozenset((STEP_CODE["all_skipped"], STEP_CODE["no_tokens"]))


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


def remembered(steps: Iterable[StepRow]) -> tuple[SeenStep, ...]:
    """The steps as numbers; waits for those that are still on their way from a device."""
    return tuple(map(seen_step, steps))


def seen_step(item: StepRow) -> SeenStep:
    """The step as numbers; waits for those that are still on their way from a device."""
    return step_of_numbers(item.step, number_of(item.loss), number_of(item.lr), number_of(item.reason))


def step_of_numbers(step: int, loss: float | None, lr: float | None, reason: float | None) -> SeenStep:
    """The step that these numbers tell of, `reason` being an index into `STEP_REASONS`."""
    # NaN is what a step without any kept token reports, and what a host does that knows no loss: `reason` tells them
    # from a model that is broken, whose step is "stepped" or dropped for its norm.
    has_loss = reason not in _NO_LOSS
    known_lr = lr if lr is not None and math.isfinite(lr) else None
    return SeenStep(step, loss if has_loss else None, known_lr, is_skipped=reason == STEP_CODE["all_skipped"])


def number_of(value: Any) -> float | None:
    """A number of whatever kind, waited for; None for what is none: the log refuses it and says so."""
    try:
        return None if value is None else float(value)
    except Exception:  # noqa: BLE001 - whatever a foreign array raises
        return None


def has_arrived(item: StepRow) -> bool:
    """Whether the numbers of a step can be asked for without waiting."""
    asks = (getattr(value, "is_ready", None) for value in (item.loss, item.lr, item.reason))
    return all(is_ready() for is_ready in asks if is_ready is not None)


def _saved_step(entry: Any) -> SeenStep:
    if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[3], bool):
        raise damaged("one of the steps before is not a list of step, loss, lr and whether it was skipped")
    step, loss, lr, is_skipped = entry
    number = float(loss) if loss in ("nan", "inf", "-inf") else _saved_number(loss, name="loss")
    return SeenStep(read_count(step, name="step"), number, _saved_number(lr, name="lr"), is_skipped)


def _saved_number(value: Any, *, name: str) -> float | None:
    if value is not None and not is_finite(value):
        raise damaged(f"{name} is no number")
    return None if value is None else float(value)
