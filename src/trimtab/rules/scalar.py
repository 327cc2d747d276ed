"""One plain number out of whatever a trainer holds it in, or a clear refusal.

A number, a numpy scalar, an array or tensor with one element comes in (known by its `item` method, so that nothing is
imported for it); a Python float or int goes out.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, SupportsFloat

from trimtab.errors import UsageError


def real_number(value: Any, *, name: str) -> float:
    """One real number out of what a trainer may hold it in; waits for a device."""
    found = _only_element(value, name=name)
    if isinstance(found, bool) or not isinstance(found, SupportsFloat):
        raise UsageError(f"{name} is {_describe(value)}: expected one real number. Pass the mean or sum as a float.")
    return float(found)


def whole_number(value: Any, *, name: str) -> int:
    """One whole number of 0 or more out of what a trainer may hold it in; waits for a device."""
    found = _only_element(value, name=name)
    if isinstance(found, bool) or not isinstance(found, Integral) or found < 0:
        raise UsageError(
            f"{name} is {_describe(value)}: expected one whole number of 0 or more. Count the supervised tokens, for "
            "example int(mask.sum())."
        )
    return int(found)


def _only_element(value: Any, *, name: str) -> object:
    """The element of an array or tensor that holds one, as a plain number; anything else as it is."""
    if not hasattr(value, "item"):
        return value
    # Asked beforehand: an error out of `item()` may be an earlier one of the device, and must stay what it is.
    if math.prod(getattr(value, "shape", ())) != 1:
        raise UsageError(f"{name} is {_describe(value)}: expected one number. Reduce it first.")
    element: object = value.item()
    return element


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape):
        return f"of type {type(value).__name__} and shape {tuple(shape)}"
    return f"{value!r} of type {type(value).__name__}"
