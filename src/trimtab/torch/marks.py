"""What a row is beside its number, on its way through a loader.

Enters: items of a dataset, in the loader's workers. Leaves: one int64 tensor a batch under `MARKS_KEY`, and in the end
row numbers, digests and names. Invariant: every batch of a loader has a tensor of the same width, so that hosts which
put batches together, cut them, or send them to other processes, as they do with tensors, find nothing odd.

Shapes: B items of a batch, W = `WORDS`. A mark is a row number, a digest (0: none), the length of the name in bytes
(-1: none) and the name in UTF-8.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

MARKS_KEY: Final = "trimtab_marks"
"""Key under which a batch carries its marks until they are taken out, before the model sees it."""

MAX_NAME_BYTES: Final = 232
"""Longest name that travels; of a longer one the beginning. A urn is 45 bytes, most URLs are below 200."""

_NAME_AT: Final = 3
WORDS: Final = _NAME_AT + MAX_NAME_BYTES // 8
"""int64 words of a mark: 256 bytes, where the tokens of a row take 8 bytes each."""

_LAYOUT: Final = struct.Struct(f"=3q{MAX_NAME_BYTES}s")
_INT64: Final = range(-(2**63), 2**63)
_CUT: Final = b"..."


class Mark(NamedTuple):
    """What is known of one item beside its row number.

    Attributes:
        digest: `trimtab.spelling.row_digest` of the item; 0 where there is none.
        name: The user's own id in UTF-8, at most `MAX_NAME_BYTES`; None where there is none.
    """

    digest: int = 0
    name: bytes | None = None


def integer_of(value: Any) -> int | None:
    """An integer of any library as int64 can hold it; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number in _INT64 else None


def name_of(value: Any) -> bytes | None:
    """An id as it travels: text or an integer; None for anything else, whose spelling would be code of its own."""
    if isinstance(value, str):
        return cut_name(value)
    number = integer_of(value)
    return None if number is None else str(number).encode()


def cut_name(text: str) -> bytes:
    """A name in UTF-8, lone surrogates as visible escapes, cut between two characters where it is too long."""
    name = text[: MAX_NAME_BYTES + 1].encode("utf-8", "backslashreplace")
    if len(name) <= MAX_NAME_BYTES:
        return name
    return name[: MAX_NAME_BYTES - len(_CUT)].decode("utf-8", "ignore").encode() + _CUT


def mark_by_name(item: Any, *, row_id: str) -> Mark | None:
    """The mark of an item that is a mapping with an id under `row_id`; None for any other."""
    if not isinstance(item, Mapping):
        return None
    name = name_of(item.get(row_id))
    return None if name is None else Mark(name=name)


def pack_marks(rows: Sequence[int], marks: Sequence[Mark | None]) -> torch.Tensor:
    """The marks of a batch as one (B, W) int64 tensor."""
    packed = bytearray(len(rows) * _LAYOUT.size)
    for place, (row, mark) in enumerate(zip(rows, marks, strict=True)):
        digest, name = mark if mark is not None else (0, None)
        size = -1 if name is None else len(name)
        _LAYOUT.pack_into(packed, place * _LAYOUT.size, row, digest, size, name or b"")
    return torch.frombuffer(packed, dtype=torch.int64).view(-1, WORDS)


def unpack_marks(marks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str | None]]:
    """Row numbers, digests and names of (..., W) marks, one entry a mark."""
    words = marks.reshape(-1, WORDS)
    letters = np.ascontiguousarray(words[:, _NAME_AT:]).view(np.uint8)
    names = [
        None if size < 0 else letters[place, :size].tobytes().decode("utf-8")
        for place, size in enumerate(words[:, 2].tolist())
    ]
    return words[:, 0], words[:, 1], names
