"""The losses in one evaluation, each with the name by which it is judged, live and from a log alike.

Enters: the facts of an event "evaluation": `loss`, and whatever else was measured. Leaves: names and losses. Invariant:
a loss that stands there twice is judged once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from trimtab.values import nonfinite_number

_NAMED: Final = re.compile(r"(?:eval|val|valid|validation|test)[_/](?:.+[_/])?loss\Z")
"""A loss on data that was not trained on, of which there may be several: `eval_wiki_loss`, `val/loss`."""

_ONLY_ONE: Final = re.compile(r"[a-z]+[_/]loss\Z")
"""Named after no data: the loss itself."""


def evaluated_losses(facts: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each loss of an evaluation with its name; "" where it is named after no data of its own.

    Args:
        facts: Of the event; `loss` may be missing, or NaN where the host knows its losses by name only.

    Example:
        >>> list(evaluated_losses({"loss": 2.5, "accuracy": 0.5}))
        [('', 2.5)]
        >>> list(evaluated_losses({"loss": "nan", "eval_wiki_loss": 2.0, "eval_code_loss": 1.0}))
        [('eval_wiki_loss', 2.0), ('eval_code_loss', 1.0)]
    """
    named = {}
    for name, value in facts.items():
        loss = _number(value)
        if loss is not None and _NAMED.match(name):
            named["" if _ONLY_ONE.match(name) else name] = loss
    loss = _number(facts.get("loss"))
    if loss is not None and "" not in named and not _stands_among(loss, named.values()):
        named = {"": loss, **named}
    yield from named.items()


def _stands_among(loss: float, named: Collection[float]) -> bool:
    """Whether it is one of those that have a name, or none because they have."""
    return bool(named) and (math.isnan(loss) or loss in named)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, int | float) else nonfinite_number(value)
    except OverflowError:
        return None
