"""How far a step moves each weight, against the weight's own size: one that leaves its usual range.

Enters: |change| / |weight| by weight, and the learning rate. Leaves: a finding `update_ratio` that names the weights.
Invariant: what is compared is the ratio over the rate, so that a warm-up or a restart of the schedule is no jump.

Adam's step is the rate times a direction of a nearly fixed size, so the ratio over the rate changes slowly; about 1e-3
is what is usual for the ratio itself. Ten times the usual is what is said, as for gradient norms, and only of weights
that move by more than 0.3 % in the step: what begins at zero (an adapter, a bias) has any ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedVitals
from trimtab.rules.said import Said, Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.rules.window import Window, float32
from trimtab.text import listed, plain
from trimtab.watched import WatchFinding

# Twenty reports of 50 steps: a thousand steps. Five are needed before anything is said: the first ones of a run are far
# from each other.
_WINDOW_SIZE: Final = 20
_MIN_HISTORY: Final = 5

_LEAST_RATIO: Final = 3e-3

# Over where every weight is back below three times its usual ratio.
_BACK: Final = 3.0

_MAX_WEIGHTS: Final = 256
_MAX_NAMED: Final = 3


class UpdateRatios:
    """Compares each weight's ratio with the median of its last twenty."""

    name: ClassVar[str] = "update_ratio"

    def __init__(self, config: WatchConfig) -> None:
        self._factor = config.update_ratio_factor
        self._said = Said()
        self._windows: dict[str, Window] = {}

    def judge(self, seen: ObservedVitals) -> tuple[WatchFinding, ...]:
        """Judges and absorbs the ratios of one look; as they are where the rate of its step is not known."""
        vitals, lr = seen
        far: dict[str, dict[str, float]] = {}
        is_back = True
        rate = lr if lr is not None and math.isfinite(lr) and lr > 0 else 1.0
        for name, ratio in vitals.update_ratio.items():
            over_rate = float32(ratio / rate)
            if not math.isfinite(over_rate) or over_rate <= 0:  # a step that was dropped, or a rate of 0
                continue
            window = self._window(name)
            if window is None:
                continue
            if len(window) >= _MIN_HISTORY:
                jump = over_rate / window.median()
                if jump >= self._factor and ratio >= _LEAST_RATIO:
                    far[plain(name)] = {"ratio": ratio, "usual": window.median() * rate, "jump": jump}
                is_back &= jump < _BACK or ratio < _LEAST_RATIO
            # Whatever it is: a new level becomes the usual one after ten looks.
            window.absorb(over_rate)
        if not far:
            if is_back and vitals.update_ratio:
                self._said.end()
            return ()
        worst = sorted(far, key=lambda name: far[name]["jump"], reverse=True)
        by = far[worst[0]]["jump"]
        told = [f"{name} by {far[name]['ratio']:.2g} of its size (usual {far[name]['usual']:.2g})" for name in worst]
        finding = WatchFinding(
            kind="update_ratio",
            severity="warning",
            step=vitals.step,
            text=f"one step moved {listed(told, most=_MAX_NAMED)}, {by:.3g} times as far as usual at this rate",
            figures={"weights": {name: far[name] for name in worst[:_MAX_NAMED]}, "num_weights": len(far), "lr": lr},
        )
        return self._said.say(finding)

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        windows = {name: window.state_dict() for name, window in self._windows.items()}
        return {"said": self._said.state_dict(), "windows": windows}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        said, windows = read_entries(state, ("said", "windows"), where="update_ratio")
        if not isinstance(windows, Mapping) or len(windows) > _MAX_WEIGHTS:
            raise damaged(f"update_ratio's windows are {spelled(windows)}, not a dict of {_MAX_WEIGHTS} at most")
        loaded = {}
        for name, entry in windows.items():
            loaded[str(name)] = window = Window(_WINDOW_SIZE)
            window.load_state_dict(entry)
            if any(value <= 0 for value in window.values()):
                raise damaged(f"update_ratio's window {spelled(name)} holds a ratio that is not above 0")
        self._said.load_state_dict(said)
        self._windows = loaded

    def _window(self, name: str) -> Window | None:
        if name not in self._windows:
            if len(self._windows) >= _MAX_WEIGHTS:
                return None
            self._windows[name] = Window(_WINDOW_SIZE)
        return self._windows[name]
