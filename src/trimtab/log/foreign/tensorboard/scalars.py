"""Reads the numbers out of TensorBoard's event records, which are protocol buffers, without their library.

Enters: the data of one record. Leaves: its time, its step, and each scalar in it by tag. Invariant: a record is read
whole or not at all; nothing in it is believed before it lies inside the record. What is no single number (images,
histograms, texts, graphs) is left alone.

    Event    1 wall_time double | 2 step int64 | 5 summary
    Summary  1 value, repeated: 1 tag | 2 simple_value float | 8 tensor
    Tensor   1 dtype | 4 content | 5 float | 6 double | 7 int | 10 int64 | 13 half        (packed or not)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_TAG_BYTES: Final = 1024
"""A longer tag names no metric."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
_HALF: Final = struct.Struct("<e")
_UNSIGNED: Final = struct.Struct("<I")

_DT_FLOAT, _DT_DOUBLE, _DT_INT32, _DT_INT64, _DT_BFLOAT16, _DT_HALF = 1, 2, 3, 9, 14, 19
_CONTENT: Final = {
    _DT_FLOAT: _FLOAT,
    _DT_DOUBLE: _DOUBLE,
    _DT_INT32: struct.Struct("<i"),
    _DT_INT64: struct.Struct("<q"),
    _DT_HALF: _HALF,
}
_LIST_FIELDS: Final = {
    _DT_FLOAT: (5, _FIXED32),
    _DT_DOUBLE: (6, _FIXED64),
    _DT_INT32: (7, _VARINT),
    _DT_INT64: (10, _VARINT),
    _DT_HALF: (13, _VARINT),
    _DT_BFLOAT16: (13, _VARINT),
}


class BadEventError(Exception):
    """A record that is no event; the message says why."""


class Scalar(NamedTuple):
    """One number under its tag, and where its four bytes stand if it is a 32-bit float, else -1."""

    tag: bytes
    value: float
    place: int


class Scalars(NamedTuple):
    """What one record says.

    Attributes:
        time: Seconds since the epoch, as written.
        step: As written, 0 where nothing is.
        scalars: The numbers.
        behind_step: Place behind the step, if the record begins with time and step as all writers let it; else -1.
    """

    time: float
    step: int
    scalars: list[Scalar]
    behind_step: int


class _Field(NamedTuple):
    number: int
    wire: int
    value: int
    """Of a varint; 0 else."""
    start: int
    end: int


def read_event(data: bytes, start: int, end: int) -> Scalars:
    """The scalars of the record `data[start:end]`.

    Raises:
        BadEventError: It is no event.
    """
    time, step, scalars, behind_step = 0.0, 0, [], -1
    for place, field in enumerate(_fields(data, start, end)):
        if field.number == 1 and field.wire == _FIXED64:
            time = _DOUBLE.unpack_from(data, field.start)[0]
        elif field.number == 2 and field.wire == _VARINT:
            step = _signed(field.value)
            if place == 1 and data[start] == 0x09:
                behind_step = field.end
        elif field.number == 5 and field.wire == _BYTES:
            for value in _fields(data, field.start, field.end):
                if value.number == 1 and value.wire == _BYTES:
                    scalar = _scalar(data, value.start, value.end)
                    if scalar is not None:
                        scalars.append(scalar)
    return Scalars(time, step, scalars, behind_step)


def _scalar(data: bytes, start: int, end: int) -> Scalar | None:
    """One value of a summary; None if it is no number, or its tag no metric's."""
    tag, value, place = b"", None, -1
    for field in _fields(data, start, end):
        if field.number == 1 and field.wire == _BYTES:
            tag = data[field.start : min(field.end, field.start + MAX_TAG_BYTES + 1)]
        elif field.number == 2 and field.wire == _FIXED32:
            value, place = _FLOAT.unpack_from(data, field.start)[0], field.start
        elif field.number == 8 and field.wire == _BYTES:
            value, place = _tensor(data, field.start, field.end)
    if value is None or len(tag) > MAX_TAG_BYTES:
        return None
    return Scalar(tag, value, place)


def _tensor(data: bytes, start: int, end: int) -> tuple[float | None, int]:
    """The number in a tensor of exactly one, and its place if it is a 32-bit float."""
    dtype, content = 0, None
    lists: list[_Field] = []
    for field in _fields(data, start, end):
        if field.number == 1 and field.wire == _VARINT:
            dtype = field.value
        elif field.number == 4 and field.wire == _BYTES:
            content = field
        else:
            lists.append(field)
    fixed = _CONTENT.get(dtype)
    if content is not None and fixed is not None and content.end - content.start == fixed.size:
        place = content.start if dtype == _DT_FLOAT else -1
        return float(fixed.unpack_from(data, content.start)[0]), place
    number, wire = _LIST_FIELDS.get(dtype, (-1, -1))
    found = [entry for field in lists if field.number == number for entry in _entries(data, field, wire)]
    if len(found) != 1:
        return None, -1
    return _number(data, found[0], dtype), found[0].start if dtype == _DT_FLOAT else -1


def _entries(data: bytes, field: _Field, wire: int) -> list[_Field]:
    """The entries of a list of numbers, packed or not; at most two, because only one is of use."""
    if field.wire == wire:
        return [field]
    if field.wire != _BYTES:
        return []
    place = field.start
    entries: list[_Field] = []
    while place < field.end and len(entries) < 2:
        value = 0
        if wire == _VARINT:
            value, behind = _varint(data, place, field.end)
        else:
            behind = place + (8 if wire == _FIXED64 else 4)
        if behind > field.end:
            raise BadEventError("a list of numbers that ends inside one")
        entries.append(_Field(field.number, wire, value, place, behind))
        place = behind
    return entries


def _number(data: bytes, entry: _Field, dtype: int) -> float:
    if dtype == _DT_HALF:
        return float(_HALF.unpack((entry.value & 0xFFFF).to_bytes(2, "little"))[0])
    if dtype == _DT_BFLOAT16:
        return float(_FLOAT.unpack(((entry.value & 0xFFFF) << 16).to_bytes(4, "little"))[0])
    if entry.wire == _VARINT:
        return float(_signed(entry.value))
    fixed = _DOUBLE if entry.wire == _FIXED64 else _FLOAT
    return float(fixed.unpack_from(data, entry.start)[0])


def _fields(data: bytes, place: int, end: int) -> Iterator[_Field]:
    """The fields of a message. Raises `BadEventError` where one does not lie inside it."""
    while place < end:
        key, place = _varint(data, place, end)
        number, wire = key >> 3, key & 7
        value, start = 0, place
        if wire == _VARINT:
            value, place = _varint(data, place, end)
        elif wire == _BYTES:
            size, start = _varint(data, place, end)
            place = start + size
        elif wire in (_FIXED64, _FIXED32):
            place += 8 if wire == _FIXED64 else 4
        else:
            raise BadEventError(f"a field of wire type {wire}")
        if place > end or not number:
            raise BadEventError("a field that does not lie inside its message")
        yield _Field(number, wire, value, start, place)


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits in groups of seven, and the place behind it."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
    raise BadEventError("a number without an end")


def _signed(value: int) -> int:
    """Two's complement of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
