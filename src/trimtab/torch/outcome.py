"""`WindowResult` and `StepOutcome`: what became of a window and of its step, told without making training wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from trimtab.torch.transfer import HostNumber
from trimtab.values import GRADIENTLESS, STEP_REASONS, StepReason


class WindowResult:
    """What one accumulation window came to.

    Lazy in every field: reading one may wait for that window on the device, not reading it never does.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Holds what `Gate.end` recorded: numbers, tensors on the host, and numbers on their way to it."""
        self._facts = facts

    @classmethod
    def of(cls, outcome: WindowResult) -> Self:
        """What of a step's outcome is known before the step is taken."""
        return cls(outcome._facts)

    @property
    def reason(self) -> StepReason:
        """Why it is stepped or not. Waits for the device where that decides, or a gradient scaler does."""
        return STEP_REASONS[int(self._facts["reason"])]

    @property
    def stepped(self) -> bool:
        """Whether parameters and optimizer state move. Waits as `reason` does."""
        return self.reason == "stepped"

    @property
    def loss(self) -> float:
        """Loss of the window on this rank, skipped contributions left out; NaN if nothing is left. Waits.

        NaN is what a window reports that was skipped whole: leave it out of a running mean (`math.isnan`).
        """
        return float(self._facts["loss"])

    @property
    def num_tokens(self) -> int:
        """Supervised tokens of the window on this rank, the skipped ones among them. Waits for the device."""
        return int(self._facts["num_tokens"])

    @property
    def num_skipped_micros(self) -> int:
        """Micro-batches that the guard left out. Waits where the device decides."""
        return int(self._facts["num_skipped_micros"])

    @property
    def num_skipped_tokens(self) -> int:
        """Their supervised tokens on this rank. Waits where the device decides."""
        return int(self._facts["num_skipped_tokens"])

    def __repr__(self) -> str:
        """Says what has arrived: a repr in a debugger must not wait for a device."""
        name = type(self).__name__
        if any(isinstance(fact, HostNumber) and not fact.is_ready() for fact in self._facts.values()):
            return f"{name}(pending)"
        return f"{name}(reason={self.reason!r}, num_skipped_micros={self.num_skipped_micros})"


class StepOutcome(WindowResult):
    """What became of one optimizer step, and of the window before it; lazy likewise."""

    __slots__ = ()

    @property
    def grad_norm(self) -> float | None:
        """Norm of the gradients before clipping; None where it was not measured. Waits for the device."""
        norm = self._facts["grad_norm"]
        return None if norm is None or self.reason in GRADIENTLESS else float(norm)

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group. Waits where it is a tensor on a device."""
        return float(self._facts["lr"])
