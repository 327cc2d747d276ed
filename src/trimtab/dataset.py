"""What a dataset object tells about itself without being disturbed: its length, a fingerprint, what a row number means.

A dataset enters as it stands, of whatever class; `DatasetFacts` leave. The invariant: nothing that the run will see
changes. A `__getitem__` may draw random numbers, open files or count calls, so no row is read except where rows are
plain values lying in a list or tuple. No framework is imported for it; classes are told by what they offer.

    list or tuple         rows hashed: all of up to 100,000, else 1,000 spread evenly
    Hugging Face Dataset  its own fingerprint and length hashed
    anything with a len   length only
    a stream              nothing
"""

from __future__ import annotations

import hashlib
import inspect
import struct
import sys
from array import array
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np

MAX_FULL_PASS_ROWS: Final = 100_000
"""Longest list that is hashed row by row; 0.3 s for short rows."""

NUM_SPREAD_ROWS: Final = 1_000
"""Rows hashed of a longer list, or of one whose rows are big."""

_BUDGET: Final = 1 << 30
"""What one pass over the rows may spend: 1 for each byte hashed, which makes about 1 s. Told by content, not by the
clock: a fingerprint must not depend on how busy the machine was."""

_VALUE_COST: Final = 512
"""What one value costs, in bytes hashed in the same time: 0.5 us of Python."""

_NUMBER_COST: Final = 64
"""Likewise for one number of a list of numbers of one type: 0.07 us."""

_INDEX: Final = "index into the dataset handed to the trainer"
_SELECTION_INDEX: Final = "index into the dataset handed to the trainer, a selection of a table's rows"
_STREAM_INDEX: Final = "worker << 40 | position in the worker's stream"
_OWN_INDEX: Final = "row number handed over by the training loop"

_INT64: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a dataset says about itself.

    Attributes:
        num_rows: Number of rows; None for a stream, or where no dataset is at hand.
        fingerprint: 64 hexadecimal digits, equal for equal rows in every process and Python version; None where none
            can be had without reading rows through the dataset's own code, or where a row holds an unknown type.
        row_index: What a row number indexes, in words.
    """

    num_rows: int | None
    fingerprint: str | None
    row_index: str


def describe(dataset: object) -> DatasetFacts:
    """Tells length, fingerprint and row numbering of a dataset; reads no row through the dataset's own code.

    Args:
        dataset: A list or tuple of rows, a Hugging Face Dataset, anything with a length, a stream, or None.

    Returns:
        The facts. What cannot be known is None; no dataset raises.

    Example:
        >>> describe([{"text": "to be"}, {"text": "or not"}]).num_rows
        2
        >>> describe(line for line in ["to be"]).row_index
        "worker << 40 | position in the worker's stream"
    """
    if dataset is None:
        return DatasetFacts(None, None, _OWN_INDEX)
    num_rows = None if _is_stream(dataset) else _length(dataset)
    if num_rows is None:
        return DatasetFacts(None, None, _STREAM_INDEX)
    if isinstance(dataset, list | tuple):
        return DatasetFacts(num_rows, _sequence_fingerprint(dataset), _INDEX)
    own = inspect.getattr_static(dataset, "_fingerprint", None)
    if not isinstance(own, str):
        return DatasetFacts(num_rows, None, _INDEX)
    # A selection or shuffle keeps `_indices` into its table; the row number counts what the trainer sees.
    selects = inspect.getattr_static(dataset, "_indices", None) is not None
    fingerprint = hashlib.sha256(f"trimtab huggingface 1\n{num_rows}\n{own}".encode()).hexdigest()
    return DatasetFacts(num_rows, fingerprint, _SELECTION_INDEX if selects else _INDEX)


def _is_stream(dataset: object) -> bool:
    # torch's IterableDataset inherits `__getitem__`, and may have a length: only its name tells.
    return any(cls.__name__ == "IterableDataset" for cls in type(dataset).__mro__)


def _length(dataset: object) -> int | None:
    if not hasattr(type(dataset), "__len__"):
        return None
    try:
        return len(dataset)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a user's class, or one around a stream: what it raises is its own choice
        return None


class _UnknownValueError(Exception):
    """A row holds something that has no canonical spelling here."""


class _TooCostlyError(Exception):
    """A pass over the rows spent the budget."""


def _sequence_fingerprint(rows: list[Any] | tuple[Any, ...]) -> str | None:
    base: type[list[Any] | tuple[Any, ...]] = list if isinstance(rows, list) else tuple
    if type(rows).__getitem__ is not base.__getitem__:
        return None  # a subclass that makes its rows when asked: what it stores is not what is trained on
    num_rows = len(rows)
    passes = [_spread(num_rows)]
    if num_rows <= MAX_FULL_PASS_ROWS:
        passes.insert(0, range(num_rows))
    try:
        for chosen in passes:
            try:
                return _hash_rows(rows, chosen)
            except _TooCostlyError:
                continue
    except (_UnknownValueError, RecursionError):
        return None
    return None


def _spread(num_rows: int) -> range | list[int]:
    if num_rows <= NUM_SPREAD_ROWS:
        return range(num_rows)
    return [place * (num_rows - 1) // (NUM_SPREAD_ROWS - 1) for place in range(NUM_SPREAD_ROWS)]


def _hash_rows(rows: list[Any] | tuple[Any, ...], chosen: range | list[int]) -> str:
    digest = hashlib.sha256(b"trimtab rows 1\n" + struct.pack("<QQ", len(rows), len(chosen)))
    speller = _Speller(_BUDGET)
    for index in chosen:
        digest.update(speller.spell(rows[index]))
    return digest.hexdigest()


class _Speller:
    """Spells values canonically, a type letter first, lengths before contents, little-endian, within a budget."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._parts: list[bytes] = []

    def spell(self, value: Any) -> bytes:
        outer, self._parts = self._parts, []
        self._add(value)
        spelled, self._parts = b"".join(self._parts), outer
        return spelled

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise _TooCostlyError

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
            raise _UnknownValueError(type(value).__qualname__) from error
        if numbers.dtype.kind not in "biufcSUmM":
            raise _UnknownValueError(f"array of {numbers.dtype}")
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
    raise _UnknownValueError(type(value).__qualname__)
