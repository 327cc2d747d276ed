"""The settings that a log was watched by, as far as they can be believed.

Enters: the facts of an event `watch`. Leaves: a `WatchConfig`, and the settings that were left out. Invariant: a value
that no watch could have had is replaced by the default; nothing raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from trimtab.errors import UsageError
from trimtab.rules.watch_config import WatchConfig

_MOST: Final = 1e18
"""More than any setting is: bytes of memory are the largest."""


class ReadSettings(NamedTuple):
    """What an event tells of the settings.

    Attributes:
        config: The settings, defaults in the place of what was left out.
        wrong: Names of what was left out.
    """

    config: WatchConfig
    wrong: tuple[str, ...]


def read_settings(facts: Mapping[str, Any]) -> ReadSettings:
    """The settings that an event `watch` names; unknown ones are of another version, and are passed over."""
    hints, usual = get_type_hints(WatchConfig), WatchConfig()
    told = [field.name for field in fields(WatchConfig) if field.name in facts]
    right = {name: facts[name] for name in told if _fits(facts[name], hints[name], usual=getattr(usual, name))}
    wrong = tuple(name for name in told if name not in right)
    try:
        return ReadSettings(WatchConfig(**right), wrong)
    except UsageError:  # each may be sound, and not together
        return ReadSettings(usual, tuple(told))


def _fits(value: Any, hint: Any, *, usual: Any) -> bool:
    """Whether a value is of a setting's type, and not outside of what its default says of its range."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    if value is None or isinstance(value, bool | str):
        return type(value) in kinds
    if not isinstance(value, int | float) or not (int in kinds or float in kinds):
        return False
    if isinstance(value, float) and float not in kinds:
        return False
    is_bounded = abs(value) < _MOST and math.isfinite(value)
    return is_bounded and (value > 0 or (value == 0 and usual == 0))
