"""Trimtab guards and records training runs, and names the dataset rows behind a loss spike from the log alone.

The public names, loaded when they are used: importing this loads the standard library only, neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab import proof as proof
    from trimtab.analysis import rewind as rewind
    from trimtab.calibration.calibrate import calibrate as calibrate
    from trimtab.calibration.values import Calibration as Calibration
    from trimtab.conversion.convert import convert as convert
    from trimtab.conversion.values import Conversion as Conversion
    from trimtab.errors import GuardLockupError as GuardLockupError
    from trimtab.errors import LogError as LogError
    from trimtab.errors import MissingExtraError as MissingExtraError
    from trimtab.errors import TrimtabError as TrimtabError
    from trimtab.errors import TrimtabWarning as TrimtabWarning
    from trimtab.errors import UsageError as UsageError
    from trimtab.findings import Findings as Findings
    from trimtab.findings import RowShare as RowShare
    from trimtab.findings import Spike as Spike
    from trimtab.guard import GuardConfig as GuardConfig
    from trimtab.guard import LossGuard as LossGuard
    from trimtab.guard import PerTokenLossGuard as PerTokenLossGuard
    from trimtab.integrations.attach import attach as attach
    from trimtab.integrations.trl_keeping import keep_row_ids as keep_row_ids
    from trimtab.log.reader import Log as Log
    from trimtab.log.reader import open_log as open_log
    from trimtab.log.table import Table as Table
    from trimtab.rules.schedule import Schedule as Schedule
    from trimtab.rules.watch_config import WatchConfig as WatchConfig
    from trimtab.torch.kits import LossKit as LossKit
    from trimtab.torch.kits import TokenNormedLossKit as TokenNormedLossKit
    from trimtab.torch.outcome import StepOutcome as StepOutcome
    from trimtab.torch.outcome import WindowResult as WindowResult
    from trimtab.torch.run import Run as Run
    from trimtab.values import Verdict as Verdict
    from trimtab.watched import WatchFinding as WatchFinding

__version__ = "0.1.0"

# Where each public name lives; the imports above say the same to type checkers and editors.
_HOMES = {
    "Calibration": "trimtab.calibration.values",
    "Conversion": "trimtab.conversion.values",
    "Findings": "trimtab.findings",
    "GuardConfig": "trimtab.guard",
    "GuardLockupError": "trimtab.errors",
    "Log": "trimtab.log.reader",
    "LogError": "trimtab.errors",
    "LossGuard": "trimtab.guard",
    "LossKit": "trimtab.torch.kits",
    "MissingExtraError": "trimtab.errors",
    "PerTokenLossGuard": "trimtab.guard",
    "RowShare": "trimtab.findings",
    "Run": "trimtab.torch.run",
    "Schedule": "trimtab.rules.schedule",
    "Spike": "trimtab.findings",
    "StepOutcome": "trimtab.torch.outcome",
    "Table": "trimtab.log.table",
    "TokenNormedLossKit": "trimtab.torch.kits",
    "TrimtabError": "trimtab.errors",
    "TrimtabWarning": "trimtab.errors",
    "UsageError": "trimtab.errors",
    "Verdict": "trimtab.values",
    "WatchConfig": "trimtab.rules.watch_config",
    "WatchFinding": "trimtab.watched",
    "WindowResult": "trimtab.torch.outcome",
    "attach": "trimtab.integrations.attach",
    "calibrate": "trimtab.calibration.calibrate",
    "convert": "trimtab.conversion.convert",
    "keep_row_ids": "trimtab.integrations.trl_keeping",
    "open_log": "trimtab.log.reader",
    "rewind": "trimtab.analysis",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name == "proof":  # the one room that is used by its own name, as in `trimtab.proof.Loop`
        return importlib.import_module("trimtab.proof")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
