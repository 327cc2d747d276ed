"""Strict JSON, and fields that are what they should be; for a file that may have been through other people's hands.

Enters: bytes, or a value from them. Leaves: the value with its type, or an error that says what was found and what was
expected. Invariant: no two readers take the same bytes for different values, and an error is plain ASCII.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from trimtab.text import plain


class BadFieldError(Exception):
    """What was found, and what was expected."""


def loads(data: bytes) -> Any:
    """What the bytes say.

    Raises:
        ValueError: They are no JSON, nest too deep, hold a number that is not finite, or a name twice in one object.
    """
    try:
        # As text: from bytes, json guesses among UTF-8, 16 and 32, and another reader may guess otherwise.
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_twice
        )
    except RecursionError as error:
        raise ValueError("nests too deep") from error


def count(found: object, name: str, *, least: int = 0, most: int = 2**53) -> int:
    """A whole number between two bounds; a truth is none. Raises `BadFieldError`, as all below do."""
    if type(found) is not int or not least <= found <= most:
        refuse(f"{name} {shown(found)}", f"a whole number from {least} to {most}")
    return found


def number(found: object, name: str) -> float:
    """A float; one that is not finite is spelled as text, "nan", "inf" or "-inf"."""
    if isinstance(found, str) and found in ("nan", "inf", "-inf"):
        return float(found)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > sys.float_info.max:
        refuse(f"{name} {shown(found)}", "a number")
    return float(found)


def texts(found: object, name: str) -> tuple[str, ...]:
    """A list of nothing but text."""
    listed = items(found, name)
    if not all(isinstance(text, str) for text in listed):
        refuse(f"{name} with something else than text in it", "texts alone")
    return tuple(listed)


def items(found: object, name: str) -> list[Any]:
    """A list."""
    if not isinstance(found, list):
        refuse(f"{name} {shown(found)}", "a list")
    return found


def entries(found: object, name: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(found, dict):
        refuse(f"{name} {shown(found)}", "an object")
    return found


def refuse(found: str, expected: str) -> NoReturn:
    """Raises `BadFieldError`."""
    raise BadFieldError(f"{found}, expected {expected}")


def shown(value: object) -> str:
    """A value from the file, as an error may show it; Python spells no number of more than 4,300 digits."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    return plain(repr(value)[:80])


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond a float's range")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless a name stands twice in it, of which each reader takes another."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return entries
