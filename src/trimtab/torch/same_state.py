"""Whether two states are one, to the last bit.

Enters: two values as a `state_dict` gives them. Leaves: yes or no. Invariant: what cannot be compared is not the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


def is_same(one: object, other: object) -> bool:
    """Whether two plain values, lists, mappings or tensors are of the same kind and hold the same; NaN is NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = one.cpu(), other.cpu()
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    try:
        return one is other or bool(one == other) or bool(one != one and other != other)
    except Exception:  # noqa: BLE001 - somebody else's class
        return False
