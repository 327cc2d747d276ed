"""What a Hugging Face `Trainer` says of an evaluation, as the facts of a log's event.

Enters: the metrics as callbacks get them, all named by the prefix of their evaluation: `eval`, `eval_wiki` of a dataset
that has a name among several, or the user's own. Leaves: its loss beside them. Invariant: an evaluation without a loss
has none, in place of one that is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ALONE: Final = "eval"
"""The prefix where there is one dataset."""

_RUNTIME: Final = "_runtime"
"""How the one metric ends that every evaluation of a trainer has: what stands before it is the prefix."""


def evaluation_facts(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """The facts of one evaluation.

    Args:
        metrics: As a callback gets them; None where a trainer of the user's own gives none.

    Returns:
        The metrics, and "loss" where there is one. That of a dataset with a name stands there by its name as well
        (`eval_wiki_loss`), by which each is judged by itself. What has a prefix of the user's own is no such loss.
    """
    facts = dict(metrics or {})
    prefix = next((name.removesuffix(_RUNTIME) for name in facts if name.endswith(_RUNTIME)), _ALONE)
    loss = facts.get(f"{prefix}_loss")
    if loss is None or not f"{prefix}_".startswith(f"{_ALONE}_"):
        return facts
    if prefix == _ALONE:
        del facts[f"{prefix}_loss"]
    return {"loss": float(loss), **facts}
