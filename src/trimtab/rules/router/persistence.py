"""How long a layer has been out of line, which decides how much that weighs.

Enters: which layers a report shows out of line, and which back. Leaves: whether it lasts. Invariant: a report in which
a layer is neither changes nothing.

A router that begins at random is often uneven for some ten steps, and finds its balance by itself: of three layers of
a small Mixtral, its load balancing loss off, one sends nearly all tokens to two of eight experts at step 20, and none
by step 100. Of a run that is past its warm-up one report is enough: it is of some ten thousand tokens.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.state import read_count
from trimtab.rules.watch_config import WatchConfig

NUM_REPORTS: Final = 3
"""Reports in a row until something lasts, in a young run."""


MAY_PASS: Final = "; a young router may find its balance by itself"
"""How a finding ends that does not weigh yet."""


class Persistence:
    """Counts reports in a row, up to what decides.

    Args:
        config: The settings; `router_warmup_steps` says how long a run is young.
    """

    def __init__(self, config: WatchConfig) -> None:
        self._young_until = config.router_warmup_steps
        self._nums: PerLayer[int] = PerLayer()

    def lasts(self, layer: str, *, step: int) -> bool:
        """Takes in that a layer is out of line; whether that weighs already.

        Args:
            layer: Its name.
            step: Of the report.
        """
        num = min(NUM_REPORTS, (self._nums.get(layer) or 0) + 1)
        self._nums.put(layer, num)
        return num == NUM_REPORTS or step > self._young_until

    def end(self, layer: str) -> None:
        """Takes in that a layer is back."""
        self._nums.forget(layer)

    def state_dict(self) -> dict[str, Any]:
        """The counts by layer."""
        return self._nums.state_dict(lambda num: num)

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        self._nums.load_state_dict(state, lambda found: read_count(found, name="reports in a row"))
