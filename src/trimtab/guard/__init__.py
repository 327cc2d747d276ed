"""The decision about a micro-batch while the run is going: keep it, or leave it out of the update.

A loss comes in, a `Verdict` goes out; `config` holds the settings, `machine` decides. Nothing here knows a framework.
"""

from trimtab.guard.config import GuardConfig
from trimtab.guard.machine import LossGuard, PerTokenLossGuard

__all__ = ["GuardConfig", "LossGuard", "PerTokenLossGuard"]
