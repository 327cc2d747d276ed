"""Integer columns as byte planes: the narrowest width that holds them, lowest byte of all values first.

Enters: int64 values. Leaves: a few short byte strings, each of one character (all low bytes, all second bytes, ...),
so that a Huffman table fits each. Invariant: every int64 column comes back exactly; arithmetic is modulo 2**64.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

_PLAIN: Final = 0
_DIFFERENCES: Final = 1
_HEAD: Final = struct.Struct("<BBq")
_FIRST: Final = struct.Struct("<q")
_LITTLE_U64: Final = np.dtype("<u8")


class BadBlockError(Exception):
    """A block whose checksum is right does not hold together; inside the log room only."""


def encode_ints(values: NDArray[np.int64]) -> list[bytes]:
    """The parts of one column: its head, then its planes; differences are stored where they are narrower."""
    if not values.size:
        return [_HEAD.pack(_PLAIN, 0, 0)]
    base, width = _range(values)
    if width and values.size > 1:
        unsigned = values.view(np.uint64)
        steps = (unsigned[1:] - unsigned[:-1]).view(np.int64)
        step_base, step_width = _range(steps)
        if step_width < width:
            head = _HEAD.pack(_DIFFERENCES, step_width, step_base) + _FIRST.pack(int(values[0]))
            return [head, *_planes(steps, step_base, step_width)]
    return [_HEAD.pack(_PLAIN, width, base), *_planes(values, base, width)]


def decode_ints(raw: bytes, offset: int, num_values: int) -> tuple[NDArray[np.int64], int]:
    """The column that starts at `offset`, and the offset behind it.

    Raises:
        BadBlockError: The bytes are no column of so many values.
    """
    try:
        mode, width, base = _HEAD.unpack_from(raw, offset)
        offset += _HEAD.size
        if mode == _DIFFERENCES:
            (first,) = _FIRST.unpack_from(raw, offset)
            offset += _FIRST.size
    except struct.error as error:
        raise BadBlockError("a column ends early") from error
    if mode not in (_PLAIN, _DIFFERENCES) or width > 8:
        raise BadBlockError(f"column mode {mode}, width {width}")
    if mode == _PLAIN:
        return _join(raw, offset, num_values, base, width), offset + width * num_values
    if num_values < 2:
        raise BadBlockError(f"differences of {num_values} values")
    steps = _join(raw, offset, num_values - 1, base, width)
    values = np.empty(num_values, np.int64)
    values[0] = first
    values[1:] = steps
    np.cumsum(values.view(np.uint64), out=values.view(np.uint64))
    return values, offset + width * (num_values - 1)


def _range(values: NDArray[np.int64]) -> tuple[int, int]:
    """Lowest value, and bytes that hold the distance to the highest."""
    low, high = int(values.min()), int(values.max())
    return low, ((high - low).bit_length() + 7) // 8


def _planes(values: NDArray[np.int64], base: int, width: int) -> list[bytes]:
    distances = values.view(np.uint64) - np.uint64(base & 0xFFFFFFFFFFFFFFFF)
    by_value = distances.astype(_LITTLE_U64, copy=False).view(np.uint8).reshape(-1, 8)
    return [by_value[:, place].tobytes() for place in range(width)]


def _join(raw: bytes, offset: int, num_values: int, base: int, width: int) -> NDArray[np.int64]:
    if len(raw) - offset < width * num_values:
        raise BadBlockError("a column ends early")
    if not width:
        return np.full(num_values, base, np.int64)
    planes = np.frombuffer(raw, np.uint8, width * num_values, offset).reshape(width, num_values)
    by_value = np.zeros((num_values, 8), np.uint8)
    by_value[:, :width] = planes.T
    distances = by_value.view(_LITTLE_U64).reshape(num_values).astype(np.uint64, copy=False)
    distances += np.uint64(base & 0xFFFFFFFFFFFFFFFF)
    return distances.view(np.int64)
