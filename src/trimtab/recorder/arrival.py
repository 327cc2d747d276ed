"""Numbers that may still be on their way from a device, as the writer's thread finds them.

Enters: a number of whatever kind, or a copy in flight that says by `is_ready` whether asking waits. Leaves: a float.
Invariant: what is no number costs itself only, here as in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def number_of(value: Any) -> float | None:
    """A number of whatever kind, waited for; None for what is none: the log refuses it and says so."""
    try:
        return None if value is None else float(value)
    except Exception:  # noqa: BLE001 - whatever a foreign array raises
        return None


def have_arrived(values: Iterable[Any]) -> bool:
    """Whether all of them can be asked for without waiting."""
    asks = (getattr(value, "is_ready", None) for value in values)
    return all(is_ready() for is_ready in asks if is_ready is not None)
