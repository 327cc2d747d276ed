"""Findings as strict JSON: no bare NaN or Infinity, no lone surrogate, so that every reader takes it.

Enters: findings of one or several runs, or a calibration. Leaves: a JSON text that ends in a newline.
"""

from __future__ import annotations

import json
from typing import Any

from trimtab.calibration.values import Calibration
from trimtab.findings import Comparison, Findings
from trimtab.text import without_surrogates


def dumps(found: Findings | Comparison | Calibration) -> str:
    """The document of one run, of several, or of a calibration; keys as its `to_dict` gives them."""
    return dumps_document(found.to_dict())


def dumps_document(document: dict[str, Any]) -> str:
    """Any JSON-ready document of ours, indented.

    Raises:
        ValueError: It holds a number that is not finite; those are spelled as strings before they come here.
    """
    return json.dumps(_strict(document), allow_nan=False, indent=2) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {_strict(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return value
