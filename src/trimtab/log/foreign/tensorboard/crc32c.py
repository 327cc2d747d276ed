"""CRC-32C (Castagnoli) of many short byte strings at once, or of one long one; the checksum of TensorBoard's files.

Enters: bytes and where each string lies in them. Leaves: one checksum a string. Invariant: equal to the definition
(reflected polynomial 0x82F63B78, all ones before and after) at every length. Zeros in front of a string change nothing
once the register starts at zero, so strings of unequal length are padded in front and go through numpy together.

Shapes: S strings, L lanes of one width, W words of 32 bits in a lane.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78
_ONES: Final = 0xFFFFFFFF
_WORD_LANE: Final = 8
_SHORT_LANE: Final = 64
_LONG_LANE: Final = 4096
_LONG_FROM: Final = 64 * _SHORT_LANE
"""Longer strings are cut into wider lanes: putting lanes together is a step in Python each."""

_INITIAL_BYTES: Final = 4  # so many bytes take in the ones with which the register starts


class _Halves(NamedTuple):
    """A linear map of 32 bits as two tables of 65,536 entries each, one a half of the register."""

    low: NDArray[np.uint32]
    high: NDArray[np.uint32]

    def of(self, register: NDArray[np.uint32]) -> NDArray[np.uint32]:
        mapped: NDArray[np.uint32] = self.low[register & 0xFFFF] ^ self.high[register >> 16]
        return mapped


def crc32c(data: NDArray[np.uint8], *, start: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The checksum of each string `data[start : start + size]`.

    Args:
        data: Any bytes.
        start: (S,) where each string begins.
        size: (S,) its bytes; may be 0.

    Returns:
        (S,) checksums.
    """
    found = np.zeros(size.size, np.uint32)
    tiny, long = size < _INITIAL_BYTES, size > _LONG_FROM
    for place in np.flatnonzero(tiny).tolist():
        found[place] = _bytewise(data[start[place] : start[place] + size[place]].tolist())
    for place in np.flatnonzero(long).tolist():
        found[place] = _of_long(data[start[place] : start[place] + size[place]])
    short = ~(tiny | long)
    if short.any():
        found[short] = _of_short(data, start[short], size[short])
    return found


def _of_short(data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint32]:
    width = _WORD_LANE if size.max() <= _WORD_LANE else _SHORT_LANE
    num_lanes = -(-size // width)
    first_lane = np.cumsum(num_lanes) - num_lanes
    string = np.repeat(np.arange(size.size), num_lanes)
    behind = (first_lane + num_lanes)[string] - np.arange(string.size)  # lanes from this one to the string's end
    lane_start = (start + size)[string] - behind * width

    place = lane_start[:, None] + np.arange(width)
    inside = place - start[string][:, None]
    lanes = data[np.maximum(place, 0)]
    lanes[inside < 0] = 0
    lanes[(inside >= 0) & (inside < _INITIAL_BYTES)] ^= 0xFF

    registers = _advance(np.zeros(string.size, np.uint32), lanes.view("<u4"))
    shift, found = _shift(width), np.zeros(size.size, np.uint32)
    for lane in range(int(num_lanes.max())):
        more = num_lanes > lane
        found[more] = shift.of(found[more]) ^ registers[first_lane[more] + lane]
    return found ^ np.uint32(_ONES)


def _of_long(string: NDArray[np.uint8]) -> int:
    num_lanes = -(-string.size // _LONG_LANE)
    padded = np.zeros(num_lanes * _LONG_LANE, np.uint8)
    padded[-string.size :] = string
    padded[padded.size - string.size :][:_INITIAL_BYTES] ^= 0xFF
    registers = _advance(np.zeros(num_lanes, np.uint32), padded.view("<u4").reshape(num_lanes, -1))
    shift, found = _shift(_LONG_LANE), 0
    for register in registers.tolist():
        found = int(shift.low[found & 0xFFFF]) ^ int(shift.high[found >> 16]) ^ register
    return found ^ _ONES


def _advance(register: NDArray[np.uint32], words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The registers (L,) after the words (L, W) went through them."""
    tables = _word_tables()
    for word in range(words.shape[1]):
        register = tables.of(register ^ words[:, word])
    return register


@cache
def _word_tables() -> _Halves:
    """What a word does to a register that starts at zero."""
    single = np.array([_bitwise(value) for value in range(256)], np.uint32)
    tables = [single]
    for _ in range(3):
        tables.append(single[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    low, high = np.arange(65536) & 0xFF, np.arange(65536) >> 8
    return _Halves(tables[3][low] ^ tables[2][high], tables[1][low] ^ tables[0][high])


@cache
def _shift(num_bytes: int) -> _Halves:
    """What so many zero bytes do to a register; a power of two, 4 or more."""
    if num_bytes == 4:
        return _word_tables()
    half = _shift(num_bytes // 2)
    return _Halves(half.of(half.low), half.of(half.high))


def _bytewise(string: list[int]) -> int:
    register = _ONES
    for byte in string:
        register = _bitwise((register ^ byte) & 0xFF) ^ (register >> 8)
    return register ^ _ONES


def _bitwise(register: int) -> int:
    for _ in range(8):
        register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)
    return register
