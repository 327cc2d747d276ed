"""`StepVerdict`: what a window is to become, by what was kept of it and by the norm of its gradients.

Enters: numbers where the host decides, 0-d tensors where a device does. Leaves: one index into
`trimtab.values.STEP_REASONS`, of the same kind. There is one body for both, and it chooses in one order: a window of
which nothing counts has no norm worth asking for. A norm that is not finite is a gradient scaler's own affair where it
lowered its scale for it; it does not where the gradients are finite and only their norm is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from trimtab.torch.gradients import GradientNorms
from trimtab.values import STEP_CODE

_STEPPED: Final = STEP_CODE["stepped"]
_NONFINITE: Final = STEP_CODE["nonfinite_norm"]


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """A verdict about an optimizer's step that nobody need look at.

    Attributes:
        code: Index into `STEP_REASONS`; an int, or 0-d int64 on the device.
        norms: Of the gradients before clipping, by which it was judged; None where they were not.
    """

    code: int | torch.Tensor = _STEPPED
    norms: GradientNorms | None = None

    @property
    def dropped(self) -> bool | torch.Tensor:
        """Whether the step must change nothing; a bool, or 0-d on the device."""
        return self.code != _STEPPED

    @property
    def is_for_norm(self) -> bool | torch.Tensor:
        """Whether the step is dropped because its norm is not finite; likewise."""
        return self.code == _NONFINITE

    @property
    def blamed(self) -> GradientNorms | None:
        """The norms, where it is for them that the step is dropped, or where that is not known here."""
        return None if self.is_for_norm is False else self.norms

    def after_scaler(self, *, overflowed: torch.Tensor) -> StepVerdict:
        """The verdict once a gradient scaler has taken the step or not; never waits.

        Args:
            overflowed: 0-d bool, whether the scaler left the step out.
        """
        code, overflow = self.code, STEP_CODE["scaler_overflow"]
        if isinstance(code, torch.Tensor):
            is_overflow = ((code == _STEPPED) | (code == _NONFINITE)) & _moved(overflowed, code.device)
            return replace(self, code=torch.where(is_overflow, overflow, code))
        if code not in (_STEPPED, _NONFINITE):  # nothing to step by, so nothing that could overflow
            return self
        return StepVerdict(torch.where(overflowed, overflow, code), self.blamed)


def judged_window(
    *, may_step: bool | torch.Tensor, has_skips: bool | torch.Tensor, norms: GradientNorms | None
) -> StepVerdict:
    """Decides about the step of a complete window; waits for `norms` where `may_step` is a bool, else never.

    Args:
        may_step: Whether anything in the window takes part in the update; a bool, or 0-d bool on the device.
        has_skips: Whether anything in it was skipped, likewise.
        norms: Of its gradients; None where they are not judged.
    """
    happened: int | torch.Tensor = _STEPPED
    if norms is not None:
        happened = _chosen(_is_finite(norms.total, like=may_step), _STEPPED, _NONFINITE)
    empty = _chosen(has_skips, STEP_CODE["all_skipped"], STEP_CODE["no_tokens"])
    return StepVerdict(_chosen(may_step, happened, empty), norms)


def _chosen(
    condition: bool | torch.Tensor,  # noqa: FBT001 - what is asked
    yes: int | torch.Tensor,
    no: int | torch.Tensor,
) -> int | torch.Tensor:
    if isinstance(condition, torch.Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def _is_finite(norm: torch.Tensor, *, like: bool | torch.Tensor) -> bool | torch.Tensor:
    if isinstance(like, torch.Tensor):
        return _moved(torch.isfinite(norm), like.device)
    return math.isfinite(float(norm))


def _moved(flag: torch.Tensor, device: torch.device) -> torch.Tensor:
    # A copy to the CPU has to arrive before anything there looks at it.
    return flag.to(device, non_blocking=device.type != "cpu")
