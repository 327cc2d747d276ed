"""The decision about a micro-batch while the run is going: keep it, or leave it out of the update.

A loss comes in, a `Verdict` goes out; `config` holds the settings, `machine` decides, `loss_guards`
are the two that a user builds. Nothing here imports a framework.
"""

from trimtab.guard.config import GuardConfig
from trimtab.guard.loss_guards import LossGuard, PerTokenLossGuard

__all__ = ["GuardConfig", "LossGuard", "PerTokenLossGuard"]
