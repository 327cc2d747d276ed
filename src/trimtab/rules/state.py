"""Reads saved states: what is in them is looked at before anything of it is taken over.

A state went through a checkpoint and through other people's hands. What `state_dict` gave comes in, or anything else;
plain values of the right types go out, or a `UsageError` that says what was found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.errors import UsageError
from trimtab.rules.scalar import MAX_WHOLE, spelled

STATE_VERSION = 1
"""Version of the state of a rule."""


def damaged(found: str) -> UsageError:
    """The error for a state that nobody saved like this.

    Args:
        found: What is wrong with it, as the end of a sentence.
    """
    return UsageError(
        f"This state is damaged: {found}. Take it from the checkpoint as state_dict() gave it, or leave the state out: "
        "the history then starts empty."
    )


def check_state(state: Any, *, expected: Mapping[str, Any]) -> None:
    """Refuses a state that was not saved by the object that is to take it over.

    Args:
        state: A `state_dict()`.
        expected: The entries that must be found in it, unchanged.

    Raises:
        UsageError: It is no dict, or an entry is missing or differs; names it, what was found, and what to do.
    """
    if not isinstance(state, Mapping):
        raise damaged(f"it is {spelled(state)}, not a dict")
    for key, wanted in expected.items():
        found = state.get(key)
        if not _equal(found, wanted):
            raise UsageError(
                f"This state was saved with {key} {spelled(found)}; here {key} is {spelled(wanted)}. Build the guard "
                "or rule as it was when the state was saved, or leave the state out: the history then starts empty."
            )


def read_entries(state: Any, keys: Iterable[str], *, where: str) -> list[Any]:
    """The entries of a dict, all of which must be there.

    Args:
        state: What should be a dict.
        keys: Its entries, in the order in which they are given back.
        where: What it is the state of.
    """
    if not isinstance(state, Mapping):
        raise damaged(f"{where} is {spelled(state)}, not a dict")
    keys = tuple(keys)
    missing = [key for key in keys if key not in state]
    if missing:
        raise damaged(f"{where} has no {missing[0]}")
    return [state[key] for key in keys]


def read_count(value: Any, *, name: str) -> int:
    """A whole number of 0 or more."""
    if type(value) is not int or not 0 <= value <= MAX_WHOLE:
        raise damaged(f"{name} is {spelled(value)}, not a whole number of 0 or more")
    return value


def is_finite(value: Any) -> bool:
    """Whether a value is a plain number that a float can hold and that is finite."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _equal(found: Any, wanted: Any) -> bool:
    try:
        # True is 1 to Python, and no version or size that anybody saved.
        return isinstance(found, bool) is isinstance(wanted, bool) and bool(found == wanted)
    except Exception:  # noqa: BLE001 - an array or tensor, which compares with nothing here
        return False
