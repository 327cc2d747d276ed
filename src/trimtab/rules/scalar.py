"""One plain number out of whatever a trainer holds it in, or a clear refusal.

A number, a numpy scalar, an array or tensor with one element comes in (known by its `item` method, so that nothing is
imported for it); a Python float or int goes out.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final, SupportsFloat

from trimtab.errors import UsageError

MAX_WHOLE: Final = 2**63 - 1
"""Largest step or count: what the log and every framework hold."""

_MAX_SPELLED: Final = 80


def real_number(value: Any, *, name: str) -> float:
    """One real number out of what a trainer may hold it in; waits for a device.

    A number beyond every float is infinite, and judged as such.
    """
    found = _only_element(value, name=name)
    if not isinstance(found, bool) and isinstance(found, SupportsFloat):
        try:
            return float(found)
        except OverflowError:
            return math.inf if found > 0 else -math.inf  # type: ignore[operator]
        except (TypeError, ValueError):  # a signalling NaN, a number type that refuses
            pass
    raise UsageError(f"{name} is {_describe(value)}: expected one real number. Pass the mean or sum as a float.")


def whole_number(value: Any, *, name: str, least: int, most: int = MAX_WHOLE, expected: str) -> int:
    """A whole number as a plain int: the one place that says what a whole number is.

    Args:
        value: What was given. Any integer type is as good as int; a truth is no number, and 7.0 is none either.
        name: What it is, as the user wrote it.
        least: Smallest number that makes sense.
        most: Largest one.
        expected: What would have made sense, as the end of the error.

    Raises:
        UsageError: It is no whole number, or out of range; says what was found and what is expected.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} is {_describe(value)}: expected {expected}")
    return number


def token_count(value: Any, *, name: str) -> int:
    """A number of supervised tokens out of what a trainer may hold it in; waits for a device."""
    return whole_number(
        _only_element(value, name=name),
        name=name,
        least=0,
        expected="one whole number of 0 or more. Count the supervised tokens, for example int(mask.sum()).",
    )


def step_number(value: Any) -> int:
    """An optimizer step as a plain int; `UsageError` where it is none."""
    return whole_number(value, name="step", least=-MAX_WHOLE, expected="a whole number, the optimizer step, or None.")


def spelled(value: Any) -> str:
    """A value as it may stand in an error: short, on one line, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - Python spells no int of 5,000 digits, and other types refuse as they like
        return f"a {type(value).__name__} that cannot be spelled"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SPELLED else text[:_MAX_SPELLED] + "..."


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
    return f"{spelled(value)} of type {type(value).__name__}"
