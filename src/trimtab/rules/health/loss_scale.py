"""The gradient scaler's scale: when it keeps halving.

Enters: the scale of each step. Leaves: a finding `loss_scale_collapse`. Invariant: the halvings with which a scaler
finds its place are no finding: those before it has held for once (65536 to 2048 in the first six steps), and the single
ones that follow a doubling (torch's scaler doubles after 2,000 good steps and is often one too high then).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import WatchFinding

# 30 steps: the search of a scaler's beginning halves at nearly every step.
_SETTLED_STEPS: Final = 30

# Halvings this far apart do not belong together: one outlier in the data each. Half of the 1,000 steps after which the
# scalers of DeepSpeed and Megatron double, a quarter of torch's.
_APART_STEPS: Final = 500

# Times the setting that halvings are warned of which are further apart, but not as far as it takes to recover: six of
# them leave a 64th.
_FAR_PATIENCE: Final = 2

# Doublings, or steps held well above the floor, after which it has recovered.
_NUM_DOUBLINGS: Final = 2
_HELD_STEPS: Final = 1_000

# A scale that leaps by this factor is not a doubling but a new scaler, whose beginning is a search again.
_LEAP: Final = 4.0

_NUMBERS: Final = ("scale", "from_scale", "changed_at", "num_in_row", "num_close", "num_settled", "num_doublings")


class LossScale:
    """Follows the scale from change to change."""

    name: ClassVar[str] = "loss_scale"

    def __init__(self, config: WatchConfig) -> None:
        self._floor = config.loss_scale_floor
        self._patience = config.loss_scale_halvings
        self._said = Said()
        self._scale = 0.0
        """The last one; 0 before the first."""
        self._from_scale = 0.0
        """Where the halvings in a row began."""
        self._changed_at = 0
        self._num_in_row = 0
        """Halvings without a doubling between them, however far apart."""
        self._num_close = 0
        """Of these, those that came close to each other after the scale had held for once."""
        self._num_settled = 0
        """Likewise, however far apart."""
        self._num_doublings = 0
        """Doublings without a halving between them."""
        self._is_settled = False

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs the scale of a step."""
        scale = item.loss_scale
        if scale is None or not math.isfinite(scale) or scale <= 0:
            return ()
        if not self._scale:
            self._scale, self._from_scale, self._changed_at = scale, scale, item.step
            return ()
        num_held = item.step - self._changed_at
        self._is_settled |= num_held >= _SETTLED_STEPS
        if num_held >= _APART_STEPS:
            self._num_close = 0
        if num_held >= _HELD_STEPS:
            self._num_settled = 0
        if scale > self._scale:
            self._grow(scale, item.step)
        elif scale < self._scale:
            return self._fall(scale, item.step)
        elif num_held >= _HELD_STEPS and scale > self._floor:
            self._said.end()
        return ()

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        numbers = {name: getattr(self, f"_{name}") for name in _NUMBERS}
        return {"said": self._said.state_dict(), "is_settled": self._is_settled, **numbers}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        said, is_settled, scale, from_scale, *counts = read_entries(
            state, ("said", "is_settled", *_NUMBERS), where="loss_scale"
        )
        if not is_finite(scale) or not is_finite(from_scale) or scale < 0:
            raise damaged(f"loss_scale's scales are {scale!r} and {from_scale!r}, not finite numbers")
        numbers = [
            read_count(count, name=f"loss_scale's {name}") for name, count in zip(_NUMBERS[2:], counts, strict=True)
        ]
        self._said.load_state_dict(said)
        self._is_settled = is_settled is True
        self._scale, self._from_scale = float(scale), float(from_scale)
        self._changed_at, self._num_in_row, self._num_close, self._num_settled, self._num_doublings = numbers

    def _grow(self, scale: float, step: int) -> None:
        if scale >= _LEAP * self._scale:
            self._is_settled = False
        self._num_doublings += 1
        if self._num_doublings >= _NUM_DOUBLINGS:
            self._said.end()
        self._num_in_row = self._num_close = self._num_settled = 0
        self._scale, self._from_scale, self._changed_at = scale, scale, step

    def _fall(self, scale: float, step: int) -> tuple[WatchFinding, ...]:
        num_halvings = max(
            1, round(math.log2(self._scale) - math.log2(scale))
        )  # a log may tell of every tenth step only
        self._num_doublings = 0
        self._num_in_row += num_halvings
        self._num_close += num_halvings if self._is_settled else 0
        self._num_settled += num_halvings if self._is_settled else 0
        self._scale, self._changed_at = scale, step
        keeps_halving = self._num_close >= self._patience or self._num_settled >= _FAR_PATIENCE * self._patience
        if not keeps_halving and not (self._num_in_row >= self._patience and scale <= self._floor):
            return ()
        finding = WatchFinding(
            kind="loss_scale_collapse",
            severity="warning",
            step=step,
            text=f"the loss scale fell from {self._from_scale:g} to {scale:g}, {self._num_in_row} halvings without a "
            "doubling between them: gradients overflow again and again, and steps are dropped for it",
            figures={"loss_scale": scale, "from": self._from_scale, "num_halvings": self._num_in_row},
        )
        return self._said.say(finding)
