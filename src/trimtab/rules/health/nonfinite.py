"""Losses and gradient norms that are not finite: a step that was taken all the same, or many that were not.

Enters: steps. Leaves: a finding `nonfinite`. Invariants: one step that a guard or a scaler kept from being taken is no
finding, nor is the search of a scaler's beginning; of a loss of 0.0 beside such a norm `ZeroLoss` speaks.

A step that is taken with a norm of NaN writes NaN into every weight that it moves, and every loss behind it is NaN. A
loss that is NaN while the norm is finite moved the weights by a finite gradient: a row without a label does that.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import json_number
from trimtab.watched import WatchFinding

# Weights that are NaN never give a finite loss again: a few are proof enough.
_NUM_WELL: Final = 5

# One is an outlier in the data, two may be.
_NUM_DROPPED: Final = 3

_TAKEN: Final = "taken"
_DROPPED: Final = "dropped"

_COUNTS: Final = ("num_well", "num_dropped", "num_taken")


class Nonfinite:
    """Looks at what became of each step whose loss or norm is no number."""

    name: ClassVar[str] = "nonfinite"

    def __init__(self, config: WatchConfig) -> None:
        del config  # there is nothing to set
        self._said = Said()
        self._num_well = 0
        self._num_dropped = 0
        """In a row, for what was not finite in them."""
        self._num_taken = 0
        """Up to 1: before the first a scaler looks for its scale."""

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs a step."""
        if not item.has_gradient:
            return ()
        is_norm_broken = item.grad_norm is not None and not math.isfinite(item.grad_norm)
        is_loss_broken = math.isinf(item.loss) or (math.isnan(item.loss) and item.is_loss_known)
        if not (is_norm_broken or is_loss_broken):
            return self._well(item)
        self._num_well = 0
        what = _what(item, is_loss_broken=is_loss_broken)
        if not item.is_stepped:
            # A loss of rows that were all left out is none.
            return self._dropped(item, what) if is_norm_broken else ()
        self._num_dropped, self._num_taken = 0, 1
        return () if item.loss == 0 else self._taken(item, what, is_norm_broken=is_norm_broken)

    @property
    def stands(self) -> bool:
        """Whether a step was taken that may have spoilt the weights, and nothing speaks for them since."""
        return self._said.stands(_TAKEN)

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {"said": self._said.state_dict(), **{name: getattr(self, f"_{name}") for name in _COUNTS}}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        said, *counts = read_entries(state, ("said", *_COUNTS), where="nonfinite")
        numbers = [read_count(count, name=f"nonfinite's {name}") for name, count in zip(_COUNTS, counts, strict=True)]
        self._said.load_state_dict(said)
        self._num_well, self._num_dropped, self._num_taken = numbers

    def _well(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        is_known = item.grad_norm is not None or math.isfinite(item.loss)
        if not item.is_stepped or not is_known:
            return ()
        self._num_dropped, self._num_taken = 0, 1
        self._num_well += 1
        self._said.end(_DROPPED)
        if self._num_well >= _NUM_WELL:
            self._said.end(_TAKEN)
        return ()

    def _taken(self, item: ObservedStep, what: str, *, is_norm_broken: bool) -> tuple[WatchFinding, ...]:
        is_harmless = item.grad_norm is not None and not is_norm_broken
        after = (
            "the gradient was finite, so the weights may be sound: look at the rows of that step"
            if is_harmless
            else "the weights, and every checkpoint from here on, may hold NaN"
        )
        finding = WatchFinding(
            kind="nonfinite",
            severity="warning" if is_harmless else "critical",
            step=item.step,
            text=f"{what}, and the step was taken: {after}",
            figures=_figures(item),
            marks_unhealthy=not is_harmless,
            since_step=max(0, item.step - 2),
        )
        return self._said.say(finding, cause=_TAKEN)

    def _dropped(self, item: ObservedStep, what: str) -> tuple[WatchFinding, ...]:
        # Of a scaler whose scale is known `LossScale` speaks.
        if item.reason == "scaler_overflow" and (item.loss_scale is not None or not self._num_taken):
            return ()
        self._num_dropped += 1
        if self._num_dropped < _NUM_DROPPED:
            return ()
        finding = WatchFinding(
            kind="nonfinite",
            severity="warning",
            step=item.step,
            text=f"{what}, and so for {self._num_dropped} steps in a row, none of which was taken "
            f"({item.reason}): the run stands still",
            figures=_figures(item) | {"num_dropped": self._num_dropped},
            since_step=item.step - self._num_dropped,
        )
        return self._said.say(finding, cause=_DROPPED)


def _what(item: ObservedStep, *, is_loss_broken: bool) -> str:
    norm = None if item.grad_norm is None or math.isfinite(item.grad_norm) else _spelled(item.grad_norm)
    if not is_loss_broken and math.isnan(item.loss):  # not known
        return f"the gradient norm is {norm}"
    loss = f"the loss is {_spelled(item.loss) if is_loss_broken else format(item.loss, '.4g')}"
    return loss if norm is None else f"{loss} and the gradient norm {norm}"


def _spelled(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"


def _figures(item: ObservedStep) -> dict[str, Any]:
    return {"loss": json_number(item.loss), "grad_norm": json_number(item.grad_norm), "reason": item.reason}
