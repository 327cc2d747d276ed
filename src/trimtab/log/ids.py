"""What the payload of an ids block holds (FORMAT.md, "Ids"): what rows are beside their number, to bytes and back.

Enters: `IdColumns` in the order handed over. Leaves: blocks that each fit a frame, or the columns again. Invariant:
`decode_ids` gives back exactly what `encode_ids` was given, or raises `BadBlockError`; a name is UTF-8 of at most
`MAX_NAME_BYTES`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from trimtab.log.blocks import MAX_RECORDS
from trimtab.log.columns import IdColumns
from trimtab.log.frames import KIND_IDS, MAX_PAYLOAD, Block
from trimtab.log.planes import BadBlockError, decode_ints, encode_ints

MAX_NAME_BYTES: Final = 4096

MAX_BLOCK_IDS: Final = 1 << 18
"""Ids in one block that is written: with 25 bytes each and `_MAX_BLOCK_NAMES` they stay under 16 MiB uncompressed."""

_MAX_BLOCK_NAMES: Final = 8 << 20
_COUNT: Final = struct.Struct("<I")
_HAS_DIGEST: Final = 1
_HAS_NAME: Final = 2


def encode_ids(columns: IdColumns) -> Iterator[Block]:
    """Ids blocks of at least one row, as many as it takes for each to fit a frame; the rows stand in any order."""
    names = [b"" if name is None else name.encode("utf-8") for name in columns.name]
    sizes = np.array([len(name) for name in names], np.int64)
    bytes_before = np.cumsum(sizes) - sizes
    low = 0
    while low < sizes.size:
        high = int(np.searchsorted(bytes_before, bytes_before[low] + _MAX_BLOCK_NAMES))
        high = min(high, low + MAX_BLOCK_IDS, sizes.size)
        part = columns.take(slice(low, high))
        flags = np.where(part.has_digest, _HAS_DIGEST, 0)
        flags[[name is not None for name in part.name]] |= _HAS_NAME
        parts = [_COUNT.pack(part.row.size)]
        for values in (part.row, part.table_row, flags, part.digest, sizes[low:high]):
            parts += encode_ints(values)
        yield Block(KIND_IDS, part.row.size, 0, 0, [*parts, b"".join(names[low:high])])
        low = high


def decode_ids(raw: bytes) -> IdColumns:
    """The columns of an ids block, in the order handed over. Raises `BadBlockError` where it does not hold together."""
    _demand(_COUNT.size <= len(raw) <= MAX_PAYLOAD, f"{len(raw)} bytes of ids")
    (num_ids,) = _COUNT.unpack_from(raw)
    _demand(0 < num_ids <= MAX_RECORDS, f"{num_ids} ids")
    row, offset = decode_ints(raw, _COUNT.size, num_ids)
    table_row, offset = decode_ints(raw, offset, num_ids)
    flags, offset = decode_ints(raw, offset, num_ids)
    digest, offset = decode_ints(raw, offset, num_ids)
    sizes, offset = decode_ints(raw, offset, num_ids)
    _demand(table_row.min() >= -1, "a row of the table below -1")
    _demand(flags.min() >= 0 and flags.max() <= _HAS_DIGEST | _HAS_NAME, "flags of an id")
    _demand(sizes.min() >= 0 and sizes.max() <= MAX_NAME_BYTES, f"a name beyond {MAX_NAME_BYTES} bytes")
    has_digest, has_name = (flags & _HAS_DIGEST) != 0, (flags & _HAS_NAME) != 0
    _demand(not digest[~has_digest].any(), "a digest that is none")
    _demand(not sizes[~has_name].any(), "bytes of a name that is none")
    _demand(offset + int(sizes.sum()) == len(raw), "the names have other bytes than the block")
    name = np.full(num_ids, None, np.object_)
    ends = [offset, *(offset + np.cumsum(sizes)).tolist()]
    try:
        for place, (start, end) in enumerate(pairwise(ends)):
            if has_name[place]:
                name[place] = raw[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBlockError("a name that is no UTF-8") from error
    return IdColumns(row, table_row, digest, has_digest, name)


def _demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadBlockError(otherwise)
