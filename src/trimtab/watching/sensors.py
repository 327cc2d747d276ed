"""What a watch asks of those that measure: few methods, so that any framework can stand behind them.

Invariant: nothing but `report` and `vitals` of a reading waits for a device.
"""

from __future__ import annotations

from typing import Protocol

from trimtab.watched import RouterReport, Vitals


class RouterReading(Protocol):
    """Figures of routers on their way to the host."""

    def is_ready(self) -> bool:
        """Whether `report` does not wait."""

    def report(self) -> RouterReport:
        """The figures; may wait."""


class RouterSensor(Protocol):
    """Measures the routers of a model."""

    def begin(self, step: int) -> None:
        """Hears how many optimizer steps are done already: what is measured from now on comes after them."""

    def collect(self, step: int) -> RouterReading:
        """Begins to bring what was measured since the last call to the host; every rank calls it at the same step.

        Args:
            step: Optimizer step (1-based) that has just ended.
        """


class VitalsReading(Protocol):
    """Figures of a machine and a step on their way to the host."""

    def is_ready(self) -> bool:
        """Whether `vitals` does not wait."""

    def vitals(self) -> Vitals:
        """The figures; may wait."""


class VitalsSensor(Protocol):
    """Measures what a machine and a model are like."""

    def arm(self) -> None:
        """Has the optimizer's next step measured."""

    def collect(self, step: int) -> VitalsReading:
        """Begins to bring what was measured to the host.

        Args:
            step: Optimizer step (1-based) that has just ended.
        """
