"""`WatchConfig`: when a watch looks, and at what it warns; each default with the run or paper it comes from.

Enters: nothing. Leaves: settings that a live watch and the analysis of a log judge by. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """Settings of a watch.

    Attributes:
        report_every: Optimizer steps between two reports of routers and vitals: one transfer each.
    """

    # 50: a collapse takes hundreds of steps (295 to 0.08 in 500 in the run the rules were made for), and a report of
    # 14 layers is one transfer of some kilobytes.
    report_every: int = 50
