"""A `.safetensors` file: does its header describe its bytes, all of them, and no others?

Enters: a file that may come from a stranger. Leaves: the names of its tensors, or `Unsound`. Invariant: no payload is
read. The format has no checksum: what is truncated, grown or rearranged is seen, a flipped bit of a weight is not.

    8 bytes: length N of the header | N bytes of JSON: name -> dtype, shape, data_offsets | data, without a gap
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final, TypeGuard

from trimtab.resume.foreign.payload import Unsound, json_object, opened
from trimtab.text import plain

MAX_HEADER_BYTES: Final = 32 << 20
"""A tensor takes about 120 bytes in it, so 250,000 fit; the library itself reads three times as much."""

_BITS: Final = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of an element. Of a kind that is not listed here the offsets alone are checked."""


def read_tensor_names(path: Path) -> frozenset[str]:
    """The names of the tensors in a file whose length and layout are right.

    Raises:
        Unsound: They are not, or it cannot be read.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if len(start) < 8:
            raise Unsound(f"is {size} bytes long: too short for a safetensors file")
        header_bytes = int.from_bytes(start, "little")
        if header_bytes > size - 8:
            raise Unsound(f"says that its header has {header_bytes:,} bytes, and has {size - 8:,}: it is truncated")
        if header_bytes > MAX_HEADER_BYTES:
            raise Unsound(
                f"says that its header has {header_bytes:,} bytes; more than {MAX_HEADER_BYTES:,} are not read"
            )
        header = json_object(file.read(header_bytes), what="has a header that is no JSON object")
    data_bytes = size - 8 - header_bytes
    header.pop("__metadata__", None)
    behind = 0
    for begin, end, name in sorted(_stretch(name, facts) for name, facts in header.items()):
        if begin != behind:
            raise Unsound(f"has a gap or an overlap in front of its tensor {plain(name)}")
        behind = end
    if behind != data_bytes:
        damage = "it is truncated" if behind > data_bytes else "something was written behind them"
        raise Unsound(f"has {data_bytes:,} bytes of tensors where its header expects {behind:,}: {damage}")
    return frozenset(header)


def _stretch(name: str, facts: Any) -> tuple[int, int, str]:
    """Where a tensor's bytes begin and end."""
    wrong = Unsound(f"has a header that makes no sense of its tensor {plain(name)}")
    if not isinstance(facts, dict):
        raise wrong
    offsets, shape, dtype = facts.get("data_offsets"), facts.get("shape"), facts.get("dtype")
    if not _are_counts(offsets) or not _are_counts(shape) or not isinstance(dtype, str) or len(offsets) != 2:
        raise wrong
    begin, end = offsets
    bits = _BITS.get(dtype)
    if begin > end or (bits is not None and math.prod(shape) * bits != (end - begin) * 8):
        raise wrong
    return begin, end, name


def _are_counts(values: object) -> TypeGuard[list[int]]:
    # A product of bounded numbers stays one that is cheap to make: a tensor has no more than 64 dimensions.
    return isinstance(values, list) and len(values) <= 64 and all(type(v) is int and 0 <= v < 2**63 for v in values)
