"""What a Hugging Face Dataset says of a row beside its index: the row of the table underneath, and the user's own id.

Enters: the dataset handed to a trainer. Leaves: a book of its rows' ids, where there are any. The trainer drops columns
that its model does not take before the loader sees them, so ids are looked up in the dataset itself, by index, in the
recorder's thread. Invariant: the dataset is only read, and never through a format or transform of the user's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.dataset.data import is_stream, is_table_dataset, selection_of
from trimtab.torch.marks import name_of
from trimtab.torch.row_ids import IdBook, NamedRows, StreamRows, ToldRows
from trimtab.values import RowIds


def id_book(dataset: Any, *, row_id: str) -> IdBook | None:
    """The book for the rows of a trainer's dataset; None where nothing can be known beside their index.

    Args:
        dataset: What the row numbers index; None: a trainer that builds its loader over data of its own choice.
        row_id: Column with the user's own ids.
    """
    if dataset is None:
        return None
    if is_stream(dataset):
        return StreamRows()
    if not is_table_dataset(dataset):
        return NamedRows(len(dataset))
    named = row_id in dataset.column_names
    return TableRows(dataset, row_id=row_id if named else None) if named or selection_of(dataset) is not None else None


class TableRows(IdBook):
    """Rows of a Hugging Face Dataset."""

    by_marks = False

    def __init__(self, dataset: Any, *, row_id: str | None) -> None:
        """Looks into `dataset`.

        Args:
            dataset: A selection, or one with ids, or both.
            row_id: Column with the user's own ids; None: it has none.
        """
        self._selection = selection_of(dataset)
        self._ids = dataset.select_columns([row_id]).with_format("arrow") if row_id is not None else None
        self._told = ToldRows(len(dataset))
        self._table_rows: NDArray[np.int64] | None = None
        selects = ("table_rows",) if self._selection is not None else ()
        self._parts = (*selects, *(("names",) if row_id is not None else ()))

    @property
    def is_complete(self) -> bool:
        """Whether every row of the dataset has been told."""
        return self._told.num_left == 0

    def new_ids(self, numbers: NDArray[np.int64]) -> RowIds:
        """Those of the rows that were not told before."""
        rows = numbers.reshape(-1)
        rows = rows[self._told.first_seen(rows)]
        return RowIds(rows, self._rows_of_table(rows), None, self._names(rows))

    def _rows_of_table(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if self._selection is None:
            return None
        if self._table_rows is None:
            self._table_rows = self._selection.column(0).to_numpy()
        return self._table_rows[rows].astype(np.int64)

    def _names(self, rows: NDArray[np.int64]) -> list[str | None] | None:
        if self._ids is None:
            return None
        if not rows.size:
            return []
        names = map(name_of, self._ids[rows].column(0).to_pylist())
        return [None if name is None else name.decode() for name in names]
