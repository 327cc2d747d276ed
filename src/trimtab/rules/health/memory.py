"""Memory of the host and of the device: too little of the one, too much taken of the other.

Enters: `Vitals`. Leaves: findings `host_memory` and `device_memory`. A run that is killed for its host's memory says
nothing: it is told while there is some, at launch and before a save takes its part.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from trimtab.rules.health.observed import ObservedVitals
from trimtab.rules.said import Said, Standing
from trimtab.rules.state import read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import Vitals, WatchFinding

_HOST: Final = "host"
_DEVICE: Final = "device"
_GB: Final = 1e9

# Over where a fifth more than the floor is there again, or a tenth less than the budget taken.
_HOST_BACK: Final = 1.2
_DEVICE_BACK: Final = 0.9


class Memory:
    """Compares what is available with a floor, and what was taken with a budget."""

    name: ClassVar[str] = "memory"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._said = Said()

    def judge(self, seen: ObservedVitals) -> tuple[WatchFinding, ...]:
        """Judges one look."""
        return (*self._host(seen.vitals), *self._device(seen.vitals))

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {"said": self._said.state_dict()}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        (said,) = read_entries(state, ("said",), where="memory")
        self._said.load_state_dict(said)

    def _host(self, vitals: Vitals) -> tuple[WatchFinding, ...]:
        available, needed = vitals.host_available_bytes, vitals.host_needed_bytes or 0
        floor = self._config.host_memory_floor_bytes
        if available is None:
            return ()
        if available - needed >= floor:
            if available - needed >= _HOST_BACK * floor:
                self._said.end(_HOST)
            return ()
        of_save = f", of which a save is about to need {needed / _GB:.1f} GB" if needed else ""
        finding = WatchFinding(
            kind="host_memory",
            severity="critical" if available < needed else "warning",
            step=vitals.step,
            text=f"{available / _GB:.1f} GB of host memory are available{of_save}; the floor is {floor / _GB:.1f} GB: "
            "a process that asks for more than there is is killed without a word",
            figures={"available_bytes": available, "needed_bytes": needed, "floor_bytes": floor},
        )
        return self._said.say(finding, cause=_HOST)

    def _device(self, vitals: Vitals) -> tuple[WatchFinding, ...]:
        peak, total = vitals.device_peak_bytes, vitals.device_total_bytes
        budget: float | None = self._config.device_memory_budget_bytes
        if budget is None and total is not None:
            budget = self._config.device_memory_share * total
        if peak is None or budget is None:
            return ()
        if peak <= budget:
            if peak <= _DEVICE_BACK * budget:
                self._said.end(_DEVICE)
            return ()
        finding = WatchFinding(
            kind="device_memory",
            severity="warning",
            step=vitals.step,
            text=f"{peak / _GB:.1f} GB of device memory were allocated at the peak, above the {budget / _GB:.1f} GB "
            "that they should stay below: a longer batch may not fit",
            figures={"peak_bytes": peak, "budget_bytes": int(budget), "total_bytes": total},
        )
        return self._said.say(finding, cause=_DEVICE)
