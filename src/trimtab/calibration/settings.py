"""The settings that a calibration tries: both rules, from strict to loose, over short and long windows.

Enters: nothing. Leaves: `SETTINGS`. Invariant: every one is a guard that is on, and re-baselines where it locks up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trimtab.guard import GuardConfig
from trimtab.rules.live import LIVE_RULES

MEAN_MULTIPLIERS: Final = (1.25, 1.5, 2.0, 2.5, 3.0, 5.0)
"""On published curves 1.25 finds what 2 misses in one run and skips a quarter of another; 5 skips hardly anything."""

MEAN_WINDOWS: Final = (8, 32)

ROBUST_KS: Final = (5.0, 7.0, 10.0, 15.0, 20.0)
"""On the same curves 5 skips up to 1 % of a healthy run, 20 misses most of the single-batch spikes."""

ROBUST_WINDOWS: Final = (100, 50, 200)
"""The rule's own first, as for `mean`: where two windows do equally well, the first is chosen."""

SETTINGS: Final = (
    *(GuardConfig(multiplier=x, window_size=size) for size in MEAN_WINDOWS for x in MEAN_MULTIPLIERS),
    *(GuardConfig(rule="robust", k=k, window_size=size) for size in ROBUST_WINDOWS for k in ROBUST_KS),
)

_DEFAULTS: Final = (GuardConfig(multiplier=2.0), GuardConfig(rule="robust"))
"""What users have without looking at a log; rule `mean` has no multiplier of its own, 2.0 is the field's habit."""


def arguments(config: GuardConfig) -> dict[str, Any]:
    """What to hand to `trimtab.GuardConfig` for the same guard, the window always named."""
    sensitivity = LIVE_RULES[config.rule].sensitivity
    return {"rule": config.rule, sensitivity: getattr(config, sensitivity), "window_size": config.window_size}


def is_default(config: GuardConfig) -> bool:
    """Whether a guard with these settings is the one that users have without looking at a log."""
    return any(_decides_alike(config, default) for default in _DEFAULTS)


def distance_from_default(settings: Mapping[str, Any]) -> float:
    """How far a setting is from its rule's default, as a ratio's logarithm: below 0 it is stricter.

    Args:
        settings: As `arguments` gives them; windows are not compared.
    """
    sensitivity = LIVE_RULES[settings["rule"]].sensitivity
    default = next(config for config in _DEFAULTS if config.rule == settings["rule"])
    usual: float = getattr(default, sensitivity)
    return math.log(settings[sensitivity] / usual)


def _decides_alike(config: GuardConfig, default: GuardConfig) -> bool:
    rule, other = config.build_rule(), default.build_rule()
    assert rule is not None, "a guard that is off is no setting to try"
    assert other is not None, "nor is it a default"
    return config.rule == default.rule and rule.settings == other.settings
