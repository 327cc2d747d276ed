"""Whether what a layer is out of line by weighs already, or may pass.

Enters: which layers a report shows out of line, and which well. Leaves: whether it weighs. Invariant: a report in which
a layer is neither changes nothing.

A router that begins at random is often uneven for some ten steps, and finds its balance by itself: of three layers of
a small Mixtral, its load balancing loss off, one sends nearly all tokens to two of eight experts at step 20, and none
by step 100. That excuses only a layer that has not found its balance yet, in a young run. One that had found it has
lost it, and of a run that is past its warm-up one report is enough: it is of some ten thousand tokens.

Reports are counted in all and not in a row: a layer that is out of line in every second one does not find its balance.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.state import read_count, read_entries
from trimtab.rules.watch_config import WatchConfig

NUM_REPORTS: Final = 3
"""Reports that show a layer out of line until that weighs, where it may pass."""

NUM_WELL: Final = 2
"""Reports that show a layer well until it has found its balance. One may be of the random beginning itself: the layer
above was well at step 10, before it had chosen anything."""

MAY_PASS: Final = "; a young router may find its balance by itself"
"""How a finding ends that does not weigh yet."""

LASTS: Final = f"; {NUM_REPORTS} reports have shown it: checkpoints are not healthy from here on"
"""How the one ends that says that it weighs from now on."""


class Weight(NamedTuple):
    """What a report weighs that shows a layer out of line.

    Attributes:
        is_full: Whether it weighs; else it may pass.
        is_new: Whether it does so since this report, because it is the last of `NUM_REPORTS`.
    """

    is_full: bool
    is_new: bool


class _Reports(NamedTuple):
    """Numbers of a layer's reports, each up to what decides."""

    out: int = 0
    well: int = 0


class Persistence:
    """Counts reports by layer, up to what decides.

    Args:
        config: The settings; `router_warmup_steps` says how long a run is young.
    """

    def __init__(self, config: WatchConfig) -> None:
        self._young_until = config.router_warmup_steps
        self._reports: PerLayer[_Reports] = PerLayer()

    def weigh(self, layer: str, *, step: int, is_sure: bool = False) -> Weight:
        """Takes in that a layer is out of line.

        Args:
            layer: Its name.
            step: Of the report.
            is_sure: Whether it needs no other report.
        """
        before = self._reports.get(layer) or _Reports()
        out = NUM_REPORTS if is_sure else min(NUM_REPORTS, before.out + 1)
        self._reports.put(layer, before._replace(out=out))
        if is_sure or step > self._young_until or before.well == NUM_WELL or before.out == NUM_REPORTS:
            return Weight(is_full=True, is_new=False)
        return Weight(is_full=out == NUM_REPORTS, is_new=out == NUM_REPORTS)

    def see_well(self, layer: str) -> None:
        """Takes in that a layer is well."""
        before = self._reports.get(layer) or _Reports()
        self._reports.put(layer, before._replace(well=min(NUM_WELL, before.well + 1)))

    def state_dict(self) -> dict[str, Any]:
        """The numbers by layer."""
        return self._reports.state_dict(lambda reports: reports._asdict())

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        self._reports.load_state_dict(state, _read_reports)


def _read_reports(found: Any) -> _Reports:
    out, well = read_entries(found, _Reports._fields, where="the reports of a layer")
    out, well = read_count(out, name="reports out of line"), read_count(well, name="reports that are well")
    return _Reports(min(NUM_REPORTS, out), min(NUM_WELL, well))
