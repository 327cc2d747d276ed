"""Fields of a file that are what they should be; for one that may have been through other people's hands.

Enters: values from JSON. Leaves: the value with its type, or a `BadFieldError` that says what was found and what was
expected. Invariant: an error is plain ASCII.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from trimtab.text import plain
from trimtab.values import nonfinite_number


class BadFieldError(Exception):
    """What was found, and what was expected."""


def count(found: object, name: str, *, least: int = 0, most: int = 2**53) -> int:
    """A whole number between two bounds; a truth is none. Raises `BadFieldError`, as all below do."""
    if type(found) is not int or not least <= found <= most:
        refuse(f"{name} {shown(found)}", f"a whole number from {least} to {most}")
    return found


def number(found: object, name: str) -> float:
    """A float; one that is not finite is spelled as text, "nan", "inf" or "-inf"."""
    spelled = nonfinite_number(found)
    if spelled is not None:
        return spelled
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
