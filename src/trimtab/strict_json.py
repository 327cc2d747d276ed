"""JSON that every reader takes for the same values; for bytes that may have been through other people's hands.

Enters: bytes. Leaves: what they say, or an error. Invariant: where two readers could take the same bytes for different
values, or one of them could not read them at all, they are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any


def loads(data: bytes) -> Any:
    """What the bytes say.

    Args:
        data: UTF-8.

    Raises:
        ValueError: They are no JSON, nest too deep, hold a number that is not finite, or a name twice in one object.

    Example:
        >>> loads(b'{"loss": 1.5, "lr": [0.25]}')
        {'loss': 1.5, 'lr': [0.25]}
    """
    try:
        # As text: from bytes, json guesses among UTF-8, 16 and 32, and another reader may guess otherwise.
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_twice
        )
    except RecursionError as error:
        raise ValueError("nests too deep") from error


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
