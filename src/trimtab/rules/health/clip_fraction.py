"""How often clipping acts: the share of steps whose norm before clipping exceeds the clip.

Enters: steps that were taken. Leaves: the share, always; a finding `clip_fraction` only where it has clearly risen.
Invariant: only steps that were taken count, and only those whose norm is a number: `nan > 1` is False and proves
nothing.

A high share by itself is ordinary: many runs clip every step of their warm-up, some every step they take. A healthy
GPT-2 run clips 24 % of its first 1,000 steps and 0.1 % of any later 1,000.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.said import Said, Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import WatchFinding

# 200: what a run of outliers in the data does not fill. 1,000 before them: longer than what a warm-up changes in a
# few steps; a slow drift over ten thousands of steps is no alarm.
_NUM_RECENT: Final = 200
_NUM_BEFORE: Final = 1_000


class ClipFraction:
    """Counts clipped steps; compares the last 200 with the 1,000 before them."""

    name: ClassVar[str] = "clip_fraction"

    def __init__(self, config: WatchConfig) -> None:
        self._rise = config.clip_fraction_rise
        self._said = Said()
        self._recent: deque[bool] = deque()
        self._before: deque[bool] = deque()
        self.num_steps = 0
        self.num_clipped = 0

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs a step."""
        if item.clipped is None or not item.is_stepped:
            return ()
        if item.grad_norm is not None and not math.isfinite(item.grad_norm):
            return ()
        self.num_steps += 1
        self.num_clipped += item.clipped
        self._recent.append(item.clipped)
        if len(self._recent) > _NUM_RECENT:
            self._before.append(self._recent.popleft())
        if len(self._before) > _NUM_BEFORE:
            self._before.popleft()
        if len(self._before) < _NUM_BEFORE:
            return ()
        # Counting True in a deque is C: some microseconds.
        recent, before = self._recent.count(True) / _NUM_RECENT, self._before.count(True) / _NUM_BEFORE
        if recent - before < self._rise / 2:
            self._said.end()
        if recent - before < self._rise:
            return ()
        finding = WatchFinding(
            kind="clip_fraction",
            severity="warning",
            step=item.step,
            text=f"the gradient norm exceeded the clip in {recent:.0%} of the last {_NUM_RECENT} steps, after "
            f"{before:.0%} of the {_NUM_BEFORE:,} before them: gradients have grown",
            figures={"recent": recent, "before": before, "all": self.fraction},
            since_step=item.step - _NUM_RECENT,
        )
        return self._said.say(finding)

    @property
    def fraction(self) -> float | None:
        """Over the whole run; None before the first step of which it is known."""
        return self.num_clipped / self.num_steps if self.num_steps else None

    @property
    def recent_fraction(self) -> float | None:
        """Over the last 200 steps."""
        return self._recent.count(True) / len(self._recent) if self._recent else None

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready; the steps as a text of 0 and 1, oldest first."""
        return {
            "said": self._said.state_dict(),
            "steps": "".join("01"[clipped] for clipped in (*self._before, *self._recent)),
            "num_steps": self.num_steps,
            "num_clipped": self.num_clipped,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("said", "steps", "num_steps", "num_clipped")
        said, steps, num_steps, num_clipped = read_entries(state, keys, where="clip_fraction")
        if not isinstance(steps, str) or not set(steps) <= {"0", "1"} or len(steps) > _NUM_RECENT + _NUM_BEFORE:
            raise damaged(f"clip_fraction holds {spelled(steps)}, not the last steps as 0 and 1")
        self._said.load_state_dict(said)
        self._before = deque(clipped == "1" for clipped in steps[:-_NUM_RECENT])
        self._recent = deque(clipped == "1" for clipped in steps[-_NUM_RECENT:])
        self.num_steps = read_count(num_steps, name="clip_fraction's num_steps")
        self.num_clipped = read_count(num_clipped, name="clip_fraction's num_clipped")
