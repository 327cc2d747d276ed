"""The files that a Hugging Face Dataset lies in: named when a run starts, opened again when a row is looked up.

Enters: a dataset object, or paths, which a log that anybody may have written can name. Leaves: `TableFiles`, or rows.
Invariant: only regular files that are called `.arrow` are opened, for reading, by pyarrow alone; nothing of them is
executed, unpickled or fetched, and a row is validated before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trimtab.dataset.data import TableData, selection_of, table_of
from trimtab.errors import MissingExtraError, UsageError

MAX_NAMES: Final = 500
"""Files, or columns, named in a log; a dataset of more of them is passed by the user."""

MAX_NAME_CHARS: Final = 1_000
"""Longest path, or name of a column, that a log holds."""

_MAX_NAMES_BYTES: Final = 1 << 19
"""All of these names as JSON; a log's header holds twice as much."""

_SUFFIX: Final = ".arrow"
_STATE: Final = "state.json"
_SPLITS: Final = "dataset_dict.json"
_MAX_STATE_BYTES: Final = 1 << 24
_SAFE_PYARROW: Final = (14, 0, 1)
"""Older ones unpickle what a file calls a type of its own."""


class TableFiles(NamedTuple):
    """Where the rows of a table are.

    Attributes:
        paths: Files of the table, in order, absolute.
        index_paths: Files that say which row of the table each row is; none where rows are the table's.
        columns: The columns that rows have, in order.
    """

    paths: tuple[str, ...] = ()
    index_paths: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


IN_MEMORY: Final = TableFiles()
"""No files: the rows, or some of them, are in memory only."""


def files_of(dataset: Any) -> TableFiles:
    """The files of a Hugging Face Dataset; none where a part of it is in memory only, or there are too many to name."""
    table, indices = table_of(dataset), selection_of(dataset)
    paths, index_paths = _paths(table), () if indices is None else _paths(indices)
    if paths is None or index_paths is None:
        return IN_MEMORY
    files = TableFiles(tuple(paths), tuple(index_paths), tuple(map(str, table.column_names)))
    fits = all(len(names) <= MAX_NAMES and all(len(name) <= MAX_NAME_CHARS for name in names) for names in files)
    return files if fits and len(json.dumps(files)) <= _MAX_NAMES_BYTES else IN_MEMORY


def _paths(table: Any) -> list[str] | None:
    """The files behind a table, one behind the other; None where a part is in memory, or beside another."""
    blocks = getattr(table, "blocks", None)
    if blocks is None:
        path = getattr(table, "path", None)
        return [path] if isinstance(path, str) else None
    paths: list[str] = []
    for side_by_side in blocks:
        found = _paths(side_by_side[0]) if len(side_by_side) == 1 else None
        if found is None:
            return None
        paths += found
    return paths


def open_files(files: TableFiles, *, num_rows: int | None) -> list[TableData]:
    """Opens the files that a log names, in every way in which their rows can be the run's.

    Args:
        files: What the log says.
        num_rows: Rows that the run had: a split of a table is its first or last so many.

    Raises:
        UsageError: A path is not that of a table's file, or the file is damaged.
        MissingExtraError: pyarrow is not installed.
    """
    relative = next((path for path in (*files.paths, *files.index_paths) if not Path(path).is_absolute()), None)
    if relative is not None:
        raise UsageError(f"{relative} is no absolute path, and is not opened.")
    first = files.paths[0]
    more = len(files.paths) + len(files.index_paths) - 1
    source = f"{first} and {more} more" if more else first
    batches = _read(files.paths)
    indices = _read(files.index_paths) if files.index_paths else None
    lacking = set(files.columns) - set(batches[0].schema.names) if batches else set()
    if lacking:
        raise UsageError(f"{source} has no column {min(lacking)!r}: it is another table than the run's.")
    whole = TableData(batches, indices=indices, columns=files.columns, is_checked=True, source=source)
    if indices is not None or num_rows is None or num_rows >= whole.num_rows:
        return [whole]
    return [
        TableData(batches, columns=files.columns, first=begin, num_rows=num_rows, is_checked=True, source=source)
        for begin in (0, whole.num_rows - num_rows)
    ]


def open_table(path: Path) -> TableData:
    """Opens an `.arrow` file, or a folder that `Dataset.save_to_disk` has left.

    Raises:
        UsageError: It is neither, or damaged.
        MissingExtraError: pyarrow is not installed.
    """
    return TableData(_read(_saved_files(path) if path.is_dir() else [str(path)]), is_checked=True, source=str(path))


def _saved_files(folder: Path) -> list[str]:
    state = folder / _STATE
    if (folder / _SPLITS).is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if (entry / _STATE).is_file())
        raise UsageError(f"{folder} holds several datasets: name the one that was trained on: {', '.join(splits)}.")
    if not state.is_file():
        raise UsageError(
            f"{folder} is not a dataset that was saved to disk: it has no {_STATE}. Name a file, or such a folder."
        )
    try:
        with state.open("rb") as file:
            document = json.loads(file.read(_MAX_STATE_BYTES))
        names = [entry["filename"] for entry in document["_data_files"]]
        inside = all(isinstance(name, str) and name not in ("", "..") and Path(name).name == name for name in names)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(f"{state} does not say which files the dataset is in ({type(error).__name__}).") from error
    if not inside:
        raise UsageError(f"{state} names files outside its folder, which are not opened.")
    return [str(folder / name) for name in names]


def _read(paths: Sequence[str]) -> list[Any]:
    pyarrow = _pyarrow()
    return [batch for path in paths for batch in _batches(pyarrow, Path(path))]


def _batches(pyarrow: Any, path: Path) -> list[Any]:
    if path.suffix != _SUFFIX:
        raise UsageError(f"{path} is no {_SUFFIX} file, and is not opened.")
    if not path.is_file():
        raise UsageError(f"{path} {'is no plain file' if path.exists() else 'is not there'}.")
    try:
        mapped = pyarrow.memory_map(str(path), "r")
        try:
            table = pyarrow.ipc.open_stream(mapped).read_all()
        except pyarrow.ArrowInvalid:
            table = pyarrow.ipc.open_file(mapped).read_all()
        batches: list[Any] = table.to_batches()
    except (OSError, ValueError, NotImplementedError) as error:
        raise UsageError(f"{path} is no Arrow table, or damaged ({error}).") from error
    return batches


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtraError("Reading a Hugging Face dataset needs pyarrow: pip install pyarrow") from error
    version: str = pyarrow.__version__
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < _SAFE_PYARROW:
        raise MissingExtraError(
            f"pyarrow {version} would execute what a file tells it to: pip install --upgrade pyarrow"
        )
    return pyarrow
