"""Gradient norms before clipping: one that jumps, one that is not finite, one that is a step old.

Enters: steps. Leaves: findings `grad_norm_jump` and `grad_norm_stale`. Invariant: only norms that were measured in a
step that was taken enter the baseline; what is not finite is counted and enters nothing.

`NormRule` says what is out of line. How far decides what is said: of its four flags in 19,560 steps of a healthy GPT-2
run the highest is 7.5 times the median and all came alone, while the two published runs whose loss broke next began
with 16.8 and 20.3 times (steps 31217 of a 176B and 11447 of a 104B run, the loss still in line at both).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.norms import NormRule
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import WatchFinding

# Of fewer norms than this the rule has a median of a few, and a young run's norms have not found their size: ratios of
# 2 to 4 at its steps 5 and 7 are ordinary. Only what is a warning is said then: the two published curves have 1 and 7
# norms before theirs.
_MIN_HISTORY: Final = 20

# A jump comes in bursts (five steps in a row in the 176B run): twenty quiet norms, as many as the rule needs to judge
# robustly, and the next one is news.
_NUM_QUIET: Final = 20

_JUMP: Final = "jump"
_STALE: Final = "stale"


class GradNorms:
    """Judges norms one by one."""

    name: ClassVar[str] = "grad_norm"

    def __init__(self, config: WatchConfig) -> None:
        self._factor = config.grad_norm_factor
        self._rule = NormRule()
        self._said = Said()
        self._last: float | None = None
        self._num_quiet = 0
        self._was_stale_said = False
        self.num_nonfinite = 0
        self.num_stale = 0

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs the norm of a step."""
        norm = item.grad_norm
        if norm is None:
            return ()
        # What a scaler or a guard kept from being stepped shows the norm of the step before in some hosts: to the bit,
        # which no gradient does. A norm of 0 is a gradient that was cleared.
        if not item.is_stepped and norm == self._last and norm != 0:
            self.num_stale += 1
            return self._stale(item, norm)
        if not item.has_gradient:
            return ()
        if not math.isfinite(norm):
            self.num_nonfinite += 1
            return ()
        self._last = norm
        if item.is_stepped:
            self._said.end(_STALE)
        return self._judge_finite(item, norm)

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {
            "rule": self._rule.state_dict(),
            "said": self._said.state_dict(),
            "last": self._last,
            "num_quiet": self._num_quiet,
            "was_stale_said": self._was_stale_said,
            "num_nonfinite": self.num_nonfinite,
            "num_stale": self.num_stale,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("rule", "said", "last", "num_quiet", "was_stale_said", "num_nonfinite", "num_stale")
        rule, said, last, num_quiet, was_said, num_nonfinite, num_stale = read_entries(state, keys, where="grad_norm")
        if last is not None and not is_finite(last):
            raise damaged(f"grad_norm's last norm is {last!r}, not a finite number")
        self._rule.load_state_dict(rule)
        self._said.load_state_dict(said)
        self._last = last
        self._num_quiet = read_count(num_quiet, name="grad_norm's num_quiet")
        self._was_stale_said = was_said is True
        self.num_nonfinite = read_count(num_nonfinite, name="grad_norm's num_nonfinite")
        self.num_stale = read_count(num_stale, name="grad_norm's num_stale")

    def _judge_finite(self, item: ObservedStep, norm: float) -> tuple[WatchFinding, ...]:
        num_behind = len(self._rule.values)
        verdict = self._rule.judge(norm)
        # A step that was dropped is judged and stays out of the baseline. One that was taken enters whatever its norm
        # is, so that a new level becomes the usual one.
        if item.is_stepped:
            self._rule.absorb(norm)
        if verdict.reason != "spike":
            self._num_quiet += 1
            if self._num_quiet >= _NUM_QUIET:
                self._said.end(_JUMP)
            return ()
        self._num_quiet = 0
        assert verdict.baseline is not None
        ratio = norm / verdict.baseline
        if num_behind < _MIN_HISTORY and ratio < self._factor:
            return ()
        figures = {"grad_norm": norm, "baseline": verdict.baseline, "ratio": ratio, "threshold": verdict.threshold}
        loss = f" while the loss is {item.loss:.4g}" if math.isfinite(item.loss) else ""
        finding = WatchFinding(
            kind="grad_norm_jump",
            severity="warning" if ratio >= self._factor else "notice",
            step=item.step,
            text=f"the gradient norm is {norm:,.4g}, {ratio:.3g} times its usual {verdict.baseline:,.4g}{loss}",
            figures=figures | ({"loss": item.loss} if loss else {}),
        )
        return self._said.say(finding, cause=_JUMP)

    def _stale(self, item: ObservedStep, norm: float) -> tuple[WatchFinding, ...]:
        if self._was_stale_said:  # it is the host's way, and will come again with every overflow
            return ()
        self._was_stale_said = True
        finding = WatchFinding(
            kind="grad_norm_stale",
            severity="notice",
            step=item.step,
            text=f"the gradient norm {norm:.6g} of a step that was not taken ({item.reason}) is that of the step "
            "before to the last bit: it is taken as missing",
            figures={"grad_norm": norm, "reason": item.reason},
        )
        return self._said.say(finding, cause=_STALE)
