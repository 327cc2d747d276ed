"""A value of plain Python spelled as bytes, the same in every process and version, to be hashed.

Enters: numbers, text, lists, mappings, arrays. Leaves: bytes, a type letter first, lengths before contents. Invariant:
equal values give equal bytes, and no code of the value's own class runs.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections import UserDict
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import numpy as np

_VALUE_COST: Final = 512
"""What one value costs, in bytes hashed in the same time: 0.5 us of Python."""

_NUMBER_COST: Final = 64
"""Likewise for one number of a list of numbers of one type: 0.07 us."""

_INT64: Final = range(-(1 << 63), 1 << 63)

_DIGEST_BUDGET: Final = 1 << 26
"""What hashing one row may spend: a larger one has no digest."""


def row_digest(row: object) -> int | None:
    """The first 8 bytes of the SHA-256 of a row's spelling, as a little-endian int64; None where it has no spelling."""
    try:
        spelled = Speller(_DIGEST_BUDGET).spell(row)
    except (UnknownValueError, TooCostlyError, RecursionError):
        return None
    return int.from_bytes(hashlib.sha256(b"trimtab row 1\n" + spelled).digest()[:8], "little", signed=True)


class UnknownValueError(Exception):
    """A row holds something that has no canonical spelling here."""


class TooCostlyError(Exception):
    """A pass over the rows spent the budget."""


class Speller:
    """Spells values canonically, a type letter first, lengths before contents, little-endian, within a budget."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._parts: list[bytes] = []

    def spell(self, value: Any) -> bytes:
        """The value as bytes. Raises `UnknownValueError` for a type it does not know, `TooCostlyError` over budget."""
        outer, self._parts = self._parts, []
        self._add(value)
        spelled, self._parts = b"".join(self._parts), outer
        return spelled

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise TooCostlyError

    def _add(self, value: Any) -> None:
        self._spend(_VALUE_COST)
        kind = type(value)
        if kind is str:
            self._add_sized(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is int:
            self._add_sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif value is None:
            self._parts.append(b"N")
        elif kind is bool:
            self._parts.append(b"T" if value else b"F")
        elif kind is float:
            self._parts.append(b"f" + struct.pack("<d", value))
        elif kind is list or kind is tuple:
            self._add_sequence(value)
        elif kind is dict:
            self._add_mapping(value)
        elif kind is bytes or kind is bytearray:
            self._add_sized(b"b", bytes(value))
        elif hasattr(kind, "__array__"):
            self._add_array(value)
        else:
            self._add(_as_plain(value))

    def _add_sized(self, letter: bytes, content: bytes) -> None:
        self._spend(len(content))
        self._parts.append(letter + struct.pack("<Q", len(content)) + content)

    def _add_sequence(self, values: list[Any] | tuple[Any, ...]) -> None:
        self._spend(_NUMBER_COST * len(values))
        # Token ids are nearly all of a row's content: in one piece they cost a tenth. Which spelling is used depends
        # on the values alone, so equal rows stay equal.
        kinds = set(map(type, values))
        if kinds == {int} and min(values) in _INT64 and max(values) in _INT64:
            self._add_sized(b"q", _little_endian(array("q", values)))
        elif kinds == {float}:
            self._add_sized(b"d", _little_endian(array("d", values)))
        else:
            self._parts.append(b"l" + struct.pack("<Q", len(values)))
            for value in values:
                self._add(value)

    def _add_mapping(self, mapping: dict[Any, Any]) -> None:
        self._parts.append(b"m" + struct.pack("<Q", len(mapping)))
        entries = [(self.spell(key), value) for key, value in mapping.items()]
        for spelled_key, value in sorted(entries, key=itemgetter(0)):
            self._parts.append(spelled_key)
            self._add(value)

    def _add_array(self, value: Any) -> None:
        """An array, or what turns into one on the host: its type, its shape and the hash of its contents."""
        try:
            numbers = np.asarray(value)
        except Exception as error:
            # A tensor on a device, one that needs a gradient, one of a type that numpy lacks: each refuses its own way.
            raise UnknownValueError(type(value).__qualname__) from error
        if numbers.dtype.kind not in "biufcSUmM":
            raise UnknownValueError(f"array of {numbers.dtype}")
        self._spend(numbers.nbytes)
        shape = numbers.shape
        numbers = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<"))
        content = numbers.reshape(-1).view(np.uint8).data if numbers.nbytes else b""
        self._add_sized(b"a", f"{numbers.dtype.str}{shape}".encode())
        self._parts.append(hashlib.sha256(content).digest())


def _little_endian(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


_PLAIN_COPIES: Final[dict[type, Callable[[Any], Any]]] = {
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    str: lambda value: str.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
}


def _as_plain(value: Any) -> Any:
    """A subclass of a plain type as that type, past whatever it overrides; `UserDict` is what tokenizers return."""
    if isinstance(value, UserDict):
        return value.data
    for plain, copy in _PLAIN_COPIES.items():
        if isinstance(value, plain):
            return copy(value)
    raise UnknownValueError(type(value).__qualname__)
