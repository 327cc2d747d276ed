"""What a person would call the text of a row, out of whatever a row is.

Enters: a row: text, bytes, a mapping, a sequence. Leaves: `RowText`: its fields as text, and the numbers in which
repetition is looked for. Nothing is sanitised here: who shows a text makes it plain. Invariant: no code of a value's
class runs beyond reading plain values and arrays, and what is made of a row is no larger than a few times the row.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_DEPTH: Final = 12
"""Levels of a nested value that are written out; a value may hold itself."""

MAX_ITEMS: Final = 10_000
"""Items of a list or mapping that are written out."""

MAX_NUMBERS: Final = 12
"""Numbers of a list of numbers that are written out; the rest are counted."""

_MAIN_FIELDS: Final = (
    ("text",),
    ("messages",),
    ("conversations",),
    ("conversation",),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "chosen", "rejected"),
    ("chosen", "rejected"),
    ("instruction", "input", "output"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "context", "answers"),
    ("content",),
    ("prompt",),
)
"""Fields that together are a row's text, by the habits of those who publish datasets; the first whole set counts."""

_IDS: Final = "input_ids"


class RowText(NamedTuple):
    """A row as text.

    Attributes:
        main: Its text in one piece, for a preview.
        fields: Every field, by name; a row without names has one, "".
        numbers: (N,) token ids where it has any, else the bytes of its text.
        is_ids: Whether `main` is written out of token ids, and stands for them place by place.
    """

    main: str
    fields: tuple[tuple[str, str], ...]
    numbers: NDArray[np.integer]
    is_ids: bool


def read_row(row: object) -> RowText:
    """The text of a row; every row has one, if only the name of its type."""
    named = row if isinstance(row, Mapping) else None
    ids = _token_ids(named.get(_IDS)) if named is not None else _token_ids(row)
    if named is None:
        fields: tuple[tuple[str, str], ...] = (("", in_words(row)),)
        main = fields[0][1]
    else:
        fields = tuple((_name(key), in_words(value)) for key, value in _first(named.items()))
        main = _main_text(named)
    is_ids = (not main and ids is not None) or (named is None and ids is not None)
    if is_ids and ids is not None:
        main = _ids_in_words(ids)
    numbers = ids if ids is not None else np.frombuffer(_as_bytes(row, main), np.uint8)
    return RowText(main or ", ".join(f"{name}: {text}" for name, text in fields), fields, numbers, is_ids)


def in_words(value: object, *, depth: int = 0) -> str:
    """A value as text: text as it is, messages as `role: content`, numbers counted, bytes by their size."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return _bytes_in_words(bytes(value))
    if value is None or isinstance(value, bool | int | float):
        return _number_in_words(value)
    if depth >= MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return _mapping_in_words(value, depth=depth)
    if isinstance(value, list | tuple):
        return _sequence_in_words(value, depth=depth)
    numbers = _as_array(value)
    return f"<{type(value).__name__}>" if numbers is None else _array_in_words(numbers)


def _main_text(row: Mapping[Any, Any]) -> str:
    for names in _MAIN_FIELDS:
        if all(name in row for name in names):
            text = "\n".join(filter(None, (in_words(row[name]) for name in names if row[name] is not None)))
            if text:
                return text
    texts = [(_name(key), value) for key, value in _first(row.items()) if isinstance(value, str) and value]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{name}: {value}" for name, value in texts)


def _mapping_in_words(value: Mapping[Any, Any], *, depth: int) -> str:
    # A message, as the two usual habits spell it.
    for who, what in (("role", "content"), ("from", "value")):
        if who in value and what in value:
            return f"{in_words(value[who], depth=depth + 1)}: {in_words(value[what], depth=depth + 1)}"
    # A part of one.
    if isinstance(value.get("text"), str) and value.get("type") == "text":
        return str(value["text"])
    entries = [f"{_name(key)}: {in_words(entry, depth=depth + 1)}" for key, entry in _first(value.items())]
    return "{" + ", ".join(entries) + _more(len(value)) + "}"


def _sequence_in_words(value: Sequence[object], *, depth: int) -> str:
    kinds = set(map(type, value))
    if kinds and kinds <= {int, float, bool}:
        shown = " ".join(_number_in_words(number) for number in value[:MAX_NUMBERS])
        return shown if len(value) <= MAX_NUMBERS else f"{shown} ... ({len(value)} numbers)"
    is_talk = bool(value) and all(isinstance(item, Mapping) for item in value)
    parts = [in_words(item, depth=depth + 1) for item in value[:MAX_ITEMS]]
    if is_talk or kinds == {str}:
        return "\n".join(parts) + _more(len(value))
    return "[" + ", ".join(parts) + _more(len(value)) + "]"


def _array_in_words(numbers: NDArray[Any]) -> str:
    if numbers.ndim == 0:
        return str(numbers.item())
    if numbers.ndim == 1 and numbers.size:
        shown = " ".join(str(number) for number in numbers[:MAX_NUMBERS].tolist())
        return shown if numbers.size <= MAX_NUMBERS else f"{shown} ... ({numbers.size} numbers)"
    return f"<{' x '.join(map(str, numbers.shape))} of {numbers.dtype}>"


def _ids_in_words(ids: NDArray[np.integer]) -> str:
    return "token ids " + " ".join(map(str, ids.tolist()))


def _bytes_in_words(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"<{len(value)} bytes>"
    return f"<{len(value)} bytes>" if "\0" in text else text


def _number_in_words(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1_000:
        return f"<a number of {value.bit_length()} bits>"  # Python refuses to write out one of 4,300 digits
    return str(value)


def _token_ids(value: object) -> NDArray[np.integer] | None:
    """Whole numbers in a row, of a list, an array or what turns into one; None where it is nothing of the kind."""
    if isinstance(value, list | tuple) and not (value and all(type(number) is int for number in value)):
        return None
    numbers = _as_array(value)
    if numbers is None or numbers.dtype.kind not in "iu" or not numbers.size:
        return None
    numbers = numbers.reshape(-1) if max(numbers.shape, default=0) == numbers.size else numbers
    return numbers.astype(np.int64) if numbers.ndim == 1 else None


def _as_array(value: object) -> NDArray[Any] | None:
    if not isinstance(value, list | tuple | array) and not hasattr(type(value), "__array__"):
        return None
    try:
        numbers = np.asarray(value)
    except Exception:  # noqa: BLE001 - a tensor on a device, a number beyond 64 bits: each refuses its own way
        return None
    return numbers if numbers.dtype.kind in "biuf" else None


def _as_bytes(row: object, main: str) -> bytes:
    if isinstance(row, bytes | bytearray):
        return bytes(row)
    return main.encode("utf-8", "surrogatepass")


def _name(key: object) -> str:
    return key if isinstance(key, str) else in_words(key, depth=MAX_DEPTH)


def _first(items: Any) -> list[Any]:
    return [item for _, item in zip(range(MAX_ITEMS), items, strict=False)]


def _more(length: int) -> str:
    return f", ... ({length} items)" if length > MAX_ITEMS else ""
