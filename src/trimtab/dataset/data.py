"""Rows at hand, whatever holds them: how many there are, and any of them as plain values.

Enters: a list, an Arrow table, a user's own dataset object. Leaves: `Data`, which knows its length and gives rows by
number. Invariant: nothing is imported for it. An Arrow table is read as it lies, past any format, transform or decoder
that a dataset around it would apply, so no code of a user's runs; a dataset of the user's own is asked as a trainer
would ask it.
"""

from __future__ import annotations

import inspect
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

import numpy as np

_WHOLE: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_REAL: Final = frozenset({"float", "double", "halffloat"})
_DTYPES: Final = {"q": np.int64, "d": np.float64}


class UnreadableRowError(Exception):
    """A row that is there and cannot be read: says which, where, and why."""


class Data(Protocol):
    """Rows at hand, to be read by number."""

    @property
    def source(self) -> str:
        """What was opened, as words of a sentence."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    def rows(self, numbers: Sequence[int]) -> Iterator[object]:
        """The rows of the given numbers, each in 0..num_rows - 1, one after the other as they are asked for.

        Raises:
            UnreadableRowError: One of them cannot be read.
        """


class SequenceData:
    """Rows of a list, or of any object with a length and rows by number.

    Args:
        rows: The object; asking a user's own class for a row runs its code.
        num_rows: Its length.
        source: What it is, as words of a sentence.
    """

    def __init__(self, rows: Any, *, num_rows: int, source: str) -> None:
        self._rows = rows
        self.num_rows = num_rows
        self.source = source

    def rows(self, numbers: Sequence[int]) -> Iterator[object]:
        """The rows as the object gives them."""
        for number in numbers:
            try:
                row = self._rows[number]
            except Exception as error:
                # A user's class, or a list that shrank: what it raises is its own choice.
                raise UnreadableRowError(f"row {number} of {self.source}: {type(error).__name__}: {error}") from error
            yield row


class TableData:
    """Rows of an Arrow table as dicts of plain values; lists of numbers come as `array.array`.

    Args:
        batches: Its record batches, pyarrow's.
        indices: Record batches of one column: which row of the table each row is; None where rows are the table's.
        columns: The columns that rows have; None: all.
        first: Row of the table that row 0 is, without `indices`.
        num_rows: How many rows, from `first` on; None: all.
        is_checked: Whether a row is validated before it is read: a file may hold offsets that lead anywhere.
        source: What it is, as words of a sentence.
    """

    def __init__(
        self,
        batches: Sequence[Any],
        *,
        indices: Sequence[Any] | None = None,
        columns: Sequence[str] | None = None,
        first: int = 0,
        num_rows: int | None = None,
        is_checked: bool = False,
        source: str,
    ) -> None:
        self._table = _Batches(batches)
        self._indices = _Batches(indices) if indices is not None else None
        self._first = first
        whole = self._indices.num_rows if self._indices is not None else self._table.num_rows - first
        self.num_rows = whole if num_rows is None else num_rows
        self._is_checked = is_checked
        self._readers = _readers(self._table.schema, columns)
        self.source = source

    def rows(self, numbers: Sequence[int]) -> Iterator[dict[str, object]]:
        """The rows as dicts."""
        for number in numbers:
            try:
                row = self._row(number)
            except Exception as error:
                # pyarrow's own errors, a damaged file, a timestamp that Python cannot hold: one class would not do.
                raise UnreadableRowError(f"row {number} of {self.source}: {type(error).__name__}: {error}") from error
            yield row

    def _row(self, number: int) -> dict[str, object]:
        place = self._first + number
        if self._indices is not None:
            batch, within = self._checked(*self._indices.find(number))
            place = int(batch.column(0)[within].as_py())
            if place >= self._table.num_rows:
                raise IndexError(f"it is said to be row {place} of a table of {self._table.num_rows}")
        batch, within = self._checked(*self._table.find(place))
        return {name: read(batch.column(column), within) for name, column, read in self._readers}

    def _checked(self, batch: Any, within: int) -> tuple[Any, int]:
        if not self._is_checked:
            return batch, within
        batch = batch.slice(within, 1)
        batch.validate(full=True)
        return batch, 0


class _Batches:
    """Record batches behind one another, found by row."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        self.num_rows = self._ends[-1] if self._ends else 0
        self.schema = self._batches[0].schema if self._batches else None

    def find(self, row: int) -> tuple[Any, int]:
        """The batch that holds a row, and its place in it."""
        at = bisect_right(self._ends, row)
        return self._batches[at], row - (self._ends[at - 1] if at else 0)


def _readers(schema: Any, columns: Sequence[str] | None) -> list[tuple[str, int, Callable[[Any, int], object]]]:
    """For each column its name, its place and what reads one of its values."""
    if schema is None:
        return []
    places = {name: at for at, name in enumerate(schema.names)}
    wanted = schema.names if columns is None else columns
    return [(name, places[name], _reader(schema.field(places[name]).type)) for name in wanted]


def _reader(kind: Any) -> Callable[[Any, int], object]:
    """What makes a plain value of one place in an Arrow array of a type.

    A list of numbers becomes an array at once: one by one they take 20 times as long, and rows of token ids are nothing
    else. Of an extension, which only the library that made it knows, what is stored is taken.
    """
    if hasattr(kind, "storage_type"):
        stored = _reader(kind.storage_type)
        return lambda column, at: stored(column.storage, at)
    numbers = str(getattr(kind, "value_type", None))
    if numbers in _WHOLE:
        return lambda column, at: _numbers(column[at], "q")
    if numbers in _REAL:
        return lambda column, at: _numbers(column[at], "d")
    return lambda column, at: column[at].as_py()


def _numbers(scalar: Any, typecode: Literal["q", "d"]) -> object:
    values = getattr(scalar, "values", None)
    if values is None or values.null_count:
        return scalar.as_py()
    return array(typecode, np.asarray(values).astype(_DTYPES[typecode]).tobytes())


def length_of(dataset: object) -> int | None:
    """A dataset's length; None for a stream, and where it does not tell.

    torch's `IterableDataset` inherits `__getitem__` and may know a length: its rows come one after the other all the
    same.
    """
    kind = type(dataset)
    if not hasattr(kind, "__len__") or any(cls.__name__ == "IterableDataset" for cls in kind.__mro__):
        return None
    try:
        return len(dataset)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a user's class, or one around a stream: what it raises is its own choice
        return None


def is_stream(dataset: object) -> bool:
    """Whether rows come one after the other only: there is no length to number them by."""
    return length_of(dataset) is None


def is_table_dataset(dataset: object) -> bool:
    """Whether it is a Hugging Face Dataset: an Arrow table, and where it is a selection the rows that were selected.

    What is looked at here and below is private to it, and known nowhere else: a test holds it in place.
    """
    return isinstance(inspect.getattr_static(dataset, "_fingerprint", None), str) and (
        inspect.getattr_static(dataset, "_data", None) is not None
    )


def table_of(dataset: Any) -> Any:
    """The Arrow table under a Hugging Face Dataset, whole, whatever the dataset is a selection of."""
    return vars(dataset)["_data"]


def selection_of(dataset: Any) -> Any | None:
    """A table of one column: which row of its own table each row of a Hugging Face Dataset is.

    None where rows are the table's, and for any other object.
    """
    return inspect.getattr_static(dataset, "_indices", None)


def table_data(dataset: Any) -> TableData:
    """The rows of a Hugging Face Dataset as they lie in its table, past its format and transform."""
    indices = selection_of(dataset)
    return TableData(
        table_of(dataset).to_batches(),
        indices=indices.to_batches() if indices is not None else None,
        source=f"a {type(dataset).__name__} of {len(dataset)} rows",
    )
