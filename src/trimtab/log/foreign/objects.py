"""Objects of a JSON or JSONL file, read without anything that a hostile one could do.

Enters: bytes of a line, or a path. Leaves: objects. Invariant: numbers stay numbers, NaN and infinities may stand bare;
what is too deep, too long or no JSON is said to be none, and raises nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trimtab.log.foreign.line_blocks import line_blocks
from trimtab.log.foreign.steps.metric_names import is_eval_loss, rank_of

NEAR_LINES: Final = 1_000
"""Lines looked at before a file is none of these."""


def read_object(line: bytes) -> dict[str, Any] | None:
    """The object in one line; None where it is none."""
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def objects_near_beginning(path: Path) -> Iterator[dict[str, Any]]:
    """Objects among the first lines of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        first = next(line_blocks(file), None)
    if first is None:
        return
    for line in islice(first.data.split(b"\n"), NEAR_LINES):
        found = read_object(line) if line.lstrip().startswith(b"{") else None
        if found is not None:
            yield found


def has_metric(entry: dict[str, Any]) -> bool:
    """Whether an entry holds a loss or a gradient norm under a name that is known, also one object further in."""
    names = list(entry)
    for key, value in entry.items():
        if isinstance(value, dict):
            names += [f"{key}/{inner}" for inner in value]
    return any(
        is_eval_loss(name) or rank_of(name, "loss") is not None or rank_of(name, "grad_norm") is not None
        for name in names
    )
