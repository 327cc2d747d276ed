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
from dataclasses import dataclass
from typing import Any, Final

from trimtab.spelling import Speller, TooCostlyError, UnknownValueError

MAX_FULL_PASS_ROWS: Final = 100_000
"""Longest list that is hashed row by row; 0.3 s for short rows."""

NUM_SPREAD_ROWS: Final = 1_000
"""Rows hashed of a longer list, or of one whose rows are big."""

_BUDGET: Final = 1 << 30
"""What one pass over the rows may spend: 1 for each byte hashed, which makes about 1 s. Told by content, not by the
clock: a fingerprint must not depend on how busy the machine was."""

_INDEX: Final = "index into the dataset handed to the trainer"
_SELECTION_INDEX: Final = "index into the dataset handed to the trainer, a selection of a table's rows"
_STREAM_INDEX: Final = "worker << 40 | position in the worker's stream"
_OWN_INDEX: Final = "row number handed over by the training loop"


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
            except TooCostlyError:
                continue
    except (UnknownValueError, RecursionError):
        return None
    return None


def _spread(num_rows: int) -> range | list[int]:
    if num_rows <= NUM_SPREAD_ROWS:
        return range(num_rows)
    return [place * (num_rows - 1) // (NUM_SPREAD_ROWS - 1) for place in range(NUM_SPREAD_ROWS)]


def _hash_rows(rows: list[Any] | tuple[Any, ...], chosen: range | list[int]) -> str:
    digest = hashlib.sha256(b"trimtab rows 1\n" + struct.pack("<QQ", len(rows), len(chosen)))
    speller = Speller(_BUDGET)
    for index in chosen:
        digest.update(speller.spell(rows[index]))
    return digest.hexdigest()
