"""What a dataset object tells about itself without being disturbed: its length, a fingerprint, what a row number means.

A dataset enters as it stands, of whatever class; `DatasetFacts` leave. The invariant: nothing that the run will see
changes. A `__getitem__` may draw random numbers, open files or count calls, so no row is read except where rows are
plain values lying in a list, a tuple or an Arrow table. No framework is imported for it; classes are told by what they
offer.

    list or tuple         rows hashed: all of up to 100,000, else 1,000 spread evenly
    Hugging Face Dataset  1,000 rows of its table hashed, before any format or transform; the files it lies in
    anything with a len   length only
    a stream              nothing
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab.dataset.data import SequenceData, is_table_dataset, length_of, selection_of, table_data
from trimtab.dataset.fingerprint import rows_fingerprint, sample_fingerprint
from trimtab.dataset.table_files import IN_MEMORY, TableFiles, files_of
from trimtab.values import RunHeader

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
        files: The files its rows lie in; without any where they are in memory.
    """

    num_rows: int | None
    fingerprint: str | None
    row_index: str
    files: TableFiles = IN_MEMORY

    def in_header(self, header: RunHeader, *, row_index: str) -> RunHeader:
        """The header with what the dataset says about itself, and `row_index`, what a row number indexes in words."""
        return replace(
            header,
            num_rows=self.num_rows,
            dataset_fingerprint=self.fingerprint,
            row_index=row_index,
            dataset_files=self.files.paths,
            dataset_index_files=self.files.index_paths,
            dataset_columns=self.files.columns,
        )


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
    num_rows = length_of(dataset)
    if num_rows is None:
        return DatasetFacts(None, None, _STREAM_INDEX)
    if isinstance(dataset, list | tuple):
        return DatasetFacts(num_rows, _sequence_fingerprint(dataset, num_rows), _INDEX)
    if not is_table_dataset(dataset):
        return DatasetFacts(num_rows, None, _INDEX)
    # The row number counts what the trainer sees.
    row_index = _INDEX if selection_of(dataset) is None else _SELECTION_INDEX
    try:
        return DatasetFacts(num_rows, sample_fingerprint(table_data(dataset)), row_index, files_of(dataset))
    except Exception:  # noqa: BLE001 - a class that only looks like one, or a table on a disk that fails
        return DatasetFacts(num_rows, None, row_index)


def _sequence_fingerprint(rows: list[Any] | tuple[Any, ...], num_rows: int) -> str | None:
    base: type[list[Any] | tuple[Any, ...]] = list if isinstance(rows, list) else tuple
    if type(rows).__getitem__ is not base.__getitem__:
        return None  # a subclass that makes its rows when asked: what it stores is not what is trained on
    return rows_fingerprint(SequenceData(rows, num_rows=num_rows, source="the list"))
