"""From what a user names, or what a log says, to rows at hand.

Enters: a path, a dataset object, or a run's header. Leaves: `Data`, one for each way in which it can be read.
Invariant: files are opened for reading, nothing of them is executed, and no network is asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trimtab.dataset.data import Data, SequenceData, is_table_dataset, length_of, table_data
from trimtab.dataset.row_files import open_row_file
from trimtab.dataset.table_files import TableFiles, open_files, open_table
from trimtab.errors import UsageError
from trimtab.values import RunHeader


def open_data(data: object) -> list[Data]:
    """Opens rows that a user names or hands over.

    Args:
        data: The path of a file or of a folder that `Dataset.save_to_disk` has left; a list, a Hugging Face Dataset,
            or any object with a length and rows by number, whose own code then runs.

    Returns:
        One `Data` for each way of reading it, the likeliest first.

    Raises:
        UsageError: Nothing is there, or nothing that has rows by number.
        MissingExtraError: pyarrow is not installed, and it is an Arrow file.
    """
    if isinstance(data, str | os.PathLike):
        return _open_path(Path(data))
    num_rows = length_of(data)
    if num_rows is None or not hasattr(type(data), "__getitem__"):
        raise UsageError(
            f"data is a {type(data).__name__}: a row is looked up by its number, which takes a length and rows by "
            "number. Hand over a list, a Dataset, or the path of a file."
        )
    if is_table_dataset(data):
        return [table_data(data)]
    kind = "list" if isinstance(data, list | tuple) else type(data).__name__
    return [SequenceData(data, num_rows=num_rows, source=f"a {kind} of {num_rows} rows")]


def open_recorded(header: RunHeader) -> Sequence[Data]:
    """Opens the files that a log says its rows lie in; none where it names none.

    Raises:
        UsageError: One of them is not there any more, or is no such file.
        MissingExtraError: pyarrow is not installed.
    """
    if not header.dataset_files:
        return ()
    files = TableFiles(header.dataset_files, header.dataset_index_files, header.dataset_columns)
    return open_files(files, num_rows=header.num_rows)


def _open_path(path: Path) -> list[Data]:
    try:
        if path.is_dir() or path.suffix == ".arrow":
            return [open_table(path)]
        if not path.is_file():
            raise UsageError(f"{path} {'is no plain file' if path.exists() else 'does not exist'}.")
        return open_row_file(path)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{str(path)!r} cannot be read ({error}).") from error
