"""Findings as strict JSON: no bare NaN or Infinity, no lone surrogate, so that every reader takes it.

Enters: findings of one or several runs. Leaves: a JSON text that ends in a newline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trimtab.report.text import without_surrogates
from trimtab.values import Findings


def dumps(findings: Findings) -> str:
    """The document of one run; keys as `Findings.to_dict` gives them."""
    return dumps_document(findings.to_dict())


def dumps_runs(runs: Sequence[Findings], *, shared: Sequence[dict[str, Any]]) -> str:
    """The document of several runs: `runs` as of one run each, `shared` what spikes in more than one."""
    return dumps_document({"version": 1, "runs": [findings.to_dict() for findings in runs], "shared": list(shared)})


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
