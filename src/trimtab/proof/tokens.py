"""Which tokens of a micro-batch are supervised, and the same micro-batch without any.

Enters: a micro-batch as a loop makes it. Leaves: another, or None where nothing in it says what is supervised.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import torch

IGNORED: Final = -100
"""The label that cross-entropy leaves out."""

_LABELS: Final = ("labels", "label", "targets", "target", "label_ids")
_MASKS: Final = ("loss_mask", "mask", "token_mask", "label_mask", "labels_mask", "completion_mask", "supervised")


def without_tokens(batch: Any) -> Any | None:
    """The same micro-batch with no supervised token in it; the batch itself is not changed.

    Args:
        batch: A mapping, a named tuple or a dataclass. Whole-number labels or targets become -100, masks become zeros.

    Returns:
        None where neither is found: nobody knows which of its numbers are supervised.
    """
    named = _parts(batch)
    emptied: dict[str, Any] = {}
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            continue
        if name in _LABELS and not value.is_floating_point() and value.dtype != torch.bool:
            emptied[name] = torch.full_like(value, IGNORED)
        elif name in _MASKS:
            emptied[name] = torch.zeros_like(value)
    return _replaced(batch, emptied) if emptied else None


def _parts(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    names = getattr(batch, "_fields", getattr(batch, "__dataclass_fields__", ()))
    return {name: getattr(batch, name) for name in names}


def _replaced(batch: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(batch, Mapping):
        changed = copy.copy(batch)  # keeps what a mapping of transformers is beside its items
        if changed is batch or not isinstance(changed, MutableMapping):
            return {**batch, **parts}
        changed.update(parts)
        return changed
    if hasattr(batch, "_replace"):
        return batch._replace(**parts)
    return dataclasses.replace(batch, **parts)
