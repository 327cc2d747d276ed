"""Files of records in Parquet, written and read by DuckDB (FORMAT.md, "Segments").

Enters: columns, in the order recorded. Leaves: a Parquet file, or the columns of a range of it. Invariant: a file is a
stranger's until its schema is ours, and DuckDB works on it in bounded memory. What stands in the files says
`trimtab.log.parquet_kinds`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.parquet_kinds import Columns, Kind
from trimtab.log.planes import BadBlockError

_MAX_LISTED: Final = 1_000
"""Rows that a query names one by one."""

_MIN_GROUPS: Final = 8
_MIN_GROUP: Final = 2_048
"""Records that DuckDB puts into a row group at least, however few are asked for."""

_MEMORY_LIMIT: Final = "96MiB"


def connect(scratch: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A database of its own in memory, on one thread, that loads nothing from the network.

    Args:
        scratch: A folder that it may spill into, if it must.

    Raises:
        duckdb.Error: The installed DuckDB lacks a setting.
    """
    return duckdb.connect(
        config={
            "threads": 1,
            "memory_limit": _MEMORY_LIMIT,
            "enable_external_file_cache": "false",  # the system has one
            "temp_directory": "" if scratch is None else str(scratch),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )


def write(
    database: duckdb.DuckDBPyConnection,
    kind: Kind[Any],
    columns: RowColumns | StepColumns | IdColumns,
    path: Path,
    *,
    compression: Literal["zstd", "uncompressed"] = "zstd",
) -> None:
    """Writes the columns as one Parquet file.

    Raises:
        duckdb.Error: It could not.
    """
    database.register("chunk", kind.arrays(columns))
    try:
        _copy(database, kind.write, _group_of(kind, columns.num_records), path, compression)
    finally:
        database.unregister("chunk")


def join(database: duckdb.DuckDBPyConnection, kind: Kind[Any], pieces: list[Path], path: Path) -> None:
    """Writes the records of several files, in their order, as one, streaming.

    Raises:
        duckdb.Error: It could not.
    """
    files = ", ".join(map(_quoted, pieces))
    _copy(database, f"select * from read_parquet([{files}], hive_partitioning=false)", kind.group, path, "zstd")


def group_sizes(database: duckdb.DuckDBPyConnection, kind: Kind[Any], file: str) -> list[tuple[int, int, int]]:
    """Records, first byte and byte behind the last of each row group of a file whose schema is that of the kind.

    Args:
        database: From `connect`.
        kind: What should be in it.
        file: Its path for DuckDB.

    Raises:
        BadBlockError: It is another kind of file.
        duckdb.Error: It is no Parquet, or a broken one.
    """
    found = database.execute("describe select * from read_parquet(?, hive_partitioning=false)", [file]).fetchall()
    types = {name: type_ for name, type_, *_ in found}
    wrong = [name for name, type_ in kind.types.items() if types.get(name) != type_]
    if wrong:
        raise BadBlockError(f"its column {wrong[0]} is {types.get(wrong[0], 'missing')}, not {kind.types[wrong[0]]}")
    groups = database.execute(
        "select any_value(row_group_num_rows), min(coalesce(dictionary_page_offset, data_page_offset)), "
        "max(coalesce(dictionary_page_offset, data_page_offset) + total_compressed_size) "
        "from parquet_metadata(?) group by row_group_id order by row_group_id",
        [file],
    ).fetchall()
    return [(int(records), int(start), int(end)) for records, start, end in groups]


def group_steps(database: duckdb.DuckDBPyConnection, file: str) -> list[tuple[int, int]]:
    """Lowest and highest step of each row group of a file that was just written; 0 and 0 where it has no steps.

    Raises:
        duckdb.Error: It cannot be read.
    """
    return database.execute(
        "select coalesce(min(stats_min_value::bigint) filter (path_in_schema = 'step'), 0), "
        "coalesce(max(stats_max_value::bigint) filter (path_in_schema = 'step'), 0) "
        "from (select row_group_id, path_in_schema, "
        "case when path_in_schema = 'step' then stats_min_value end as stats_min_value, "
        "case when path_in_schema = 'step' then stats_max_value end as stats_max_value from parquet_metadata(?)) "
        "group by row_group_id order by row_group_id",
        [file],
    ).fetchall()


def read(
    database: duckdb.DuckDBPyConnection,
    kind: Kind[Columns],
    file: str,
    first: int,
    num_records: int,
    *,
    rank: int,
    first_step: int | None = None,
    last_step: int | None = None,
    rows: NDArray[np.int64] | None = None,
    brief: bool = False,
) -> Columns:
    """The records from `first` on, of a file whose schema was looked at.

    Args:
        database: From `connect`.
        kind: What is in it.
        file: Its path for DuckDB.
        first: How many records stand before them.
        num_records: How many they are.
        rank: The rank that recorded them.
        first_step: If given, only records from this step on are read.
        last_step: Likewise up to this one.
        rows: (N,) if given, only records of these rows are asked for; others come along where the list is long.
        brief: Only what steps and spikes are found by is asked for; the rest comes as nobody knows it.

    Raises:
        BadBlockError: They do not hold together.
        duckdb.Error: They cannot be read.
    """
    only = "" if first_step is None else f" and step >= {first_step}"
    only += "" if last_step is None else f" and step <= {last_step}"
    if rows is not None and rows.size <= _MAX_LISTED:
        only += f" and row in ({', '.join(map(str, rows.tolist()))})"
    found = database.execute(
        f"{(brief and kind.read_brief) or kind.read} "
        "from read_parquet(?, file_row_number=true, hive_partitioning=false) "
        f"where file_row_number >= {first} and file_row_number < {first + num_records}{only}",
        [file],
    ).fetchnumpy()
    for name, values in found.items():
        if values.size > num_records or (values.size < num_records and not only):
            raise BadBlockError(f"{values.size} records where {num_records} should be")
        if isinstance(values, np.ma.MaskedArray) and name not in kind.optional:
            if np.ma.getmaskarray(values).any():
                raise BadBlockError(f"{name} is missing")
            found[name] = values.data
    return kind.records(found, rank)


def _group_of(kind: Kind[Any], num_records: int) -> int:
    """Records in a row group of a file: of a small one an eighth, so that a flipped byte does not cost it whole."""
    return min(kind.group, max(_MIN_GROUP, num_records // _MIN_GROUPS))


def _copy(database: duckdb.DuckDBPyConnection, query: str, group: int, path: Path, compression: str) -> None:
    # Bloom filters would be a tenth of the file, and nobody looks a row up by equality here.
    database.execute(
        f"copy ({query}) to {_quoted(path)} (format parquet, compression {compression}, parquet_version v2, "
        f"row_group_size {group}, write_bloom_filter false)"
    )


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
