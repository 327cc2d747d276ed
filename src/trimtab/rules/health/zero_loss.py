"""A loss of exactly 0.0 with a gradient norm that is not finite: a broken step that looks like a perfect one.

Enters: steps. Leaves: a finding `zero_loss`. Invariant: while it stands no evaluation is a best one.

Hosts that keep NaN out of their logs write 0.0 for it; the norm beside it tells that it is no loss.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import WatchFinding

# Weights that are NaN never give a finite loss again: a few are proof enough.
_NUM_WELL: Final = 5


class ZeroLoss:
    """Looks at loss and norm together."""

    name: ClassVar[str] = "zero_loss"

    def __init__(self, config: WatchConfig) -> None:
        del config  # there is nothing to set
        self._said = Said()
        self._num_well = 0

    def judge(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges a step."""
        if not item.has_gradient or item.grad_norm is None:
            return ()
        if math.isfinite(item.grad_norm):
            is_well = math.isfinite(item.loss) and item.loss != 0
            self._num_well = self._num_well + 1 if is_well else 0
            if self._num_well >= _NUM_WELL:
                self._said.end()
            return ()
        self._num_well = 0
        if item.loss != 0:
            return ()
        norm = "NaN" if math.isnan(item.grad_norm) else "infinite"
        finding = WatchFinding(
            kind="zero_loss",
            severity="critical",
            step=item.step,
            text=f"the loss is exactly 0.0 and the gradient norm {norm}: the loss was not a number and is written as "
            "0.0, which is no improvement (a fully masked attention row gives NaN, so does a row without a label)",
            figures={"loss": 0.0, "grad_norm": norm.lower() if norm == "NaN" else "inf", "reason": item.reason},
            marks_unhealthy=True,
            since_step=max(0, item.step - 2),
        )
        return self._said.say(finding)

    @property
    def stands(self) -> bool:
        """Whether it was said and is not over."""
        return self._said.stands()

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {"said": self._said.state_dict(), "num_well": self._num_well}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        said, num_well = read_entries(state, ("said", "num_well"), where="zero_loss")
        self._said.load_state_dict(said)
        self._num_well = read_count(num_well, name="zero_loss's num_well")
