"""Row, step and id records as Parquet, written and read by DuckDB (FORMAT.md, "Segments").

Enters: columns, in the order recorded. Leaves: a Parquet file, or the columns of a range of it. Invariant: what is read
back is bit by bit what was written, NaNs too, whose bits DuckDB does not keep: those that are not the usual ones stand
in a column beside. A file is a stranger's until its schema is ours, and DuckDB works on it in bounded memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import duckdb
import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.ids import MAX_NAME_BYTES
from trimtab.log.planes import BadBlockError
from trimtab.values import STEP_REASONS, VERDICT_REASONS

GROUP_RECORDS: Final = 1 << 17
"""Row or step records in a row group: what a flipped byte costs, and what is skipped where other steps are read."""

GROUP_IDS: Final = 1 << 14
"""Likewise for ids, whose names may take 4 KiB each."""

_MAX_LISTED: Final = 1_000
"""Rows that a query names one by one."""

_MEMORY_LIMIT: Final = "96MiB"
_MAX_ATTEMPT: Final = 0xFFFF
_NAN32: Final = int(np.array(np.nan, np.float32).view(np.int32))
_NAN64: Final = int(np.array(np.nan, np.float64).view(np.int64))

Columns = TypeVar("Columns", RowColumns, StepColumns, IdColumns)


class Kind(NamedTuple):
    """How one kind of record stands in Parquet.

    Attributes:
        group: Records in a row group.
        types: Column and DuckDB type, in order.
        write: SQL from the arrays of `_arrays_of_*`, registered as `chunk`, to those columns.
        read: SQL from those columns to arrays.
    """

    group: int
    types: dict[str, str]
    write: str
    read: str


def _texts(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"


_FLOATS: Final = ("loss", "grad_norm", "lr", "loss_scale", "wall_s")

ROWS: Final = Kind(
    GROUP_RECORDS,
    {
        "attempt": "INTEGER",
        "step": "BIGINT",
        "micro": "INTEGER",
        "rank": "INTEGER",
        "row": "BIGINT",
        "loss_sum": "FLOAT",
        "num_tokens": "INTEGER",
        "finite": "BOOLEAN",
        "verdict": "VARCHAR",
        "keep": "BOOLEAN",
        "loss_sum_nan": "INTEGER",
    },
    # DuckDB takes a NaN in a numpy array for a missing value.
    "select attempt, step, micro, rank, row, coalesce(loss_sum, 'nan'::float) as loss_sum, num_tokens, finite, "
    f"{_texts(VERDICT_REASONS)}[reason + 1] as verdict, keep, nullif(loss_sum_nan, 0) as loss_sum_nan from chunk",
    "select attempt, step, micro, row, loss_sum, num_tokens, "
    f"list_position({_texts(VERDICT_REASONS)}, verdict) as reason, keep, coalesce(loss_sum_nan, 0) as loss_sum_nan",
)

STEPS: Final = Kind(
    GROUP_RECORDS,
    {
        "attempt": "INTEGER",
        "step": "BIGINT",
        "rank": "INTEGER",
        "loss": "DOUBLE",
        "grad_norm": "DOUBLE",
        "lr": "DOUBLE",
        "reason": "VARCHAR",
        "clipped": "BOOLEAN",
        "loss_scale": "DOUBLE",
        "wall_s": "DOUBLE",
        "num_tokens": "BIGINT",
        "num_skipped_micros": "BIGINT",
        "num_skipped_tokens": "BIGINT",
        **{f"{name}_nan": "BIGINT" for name in _FLOATS},
    },
    "select attempt, step, rank, coalesce(loss, 'nan'::double) as loss, "
    "case when has_grad_norm then coalesce(grad_norm, 'nan'::double) end as grad_norm, "
    "case when has_lr then coalesce(lr, 'nan'::double) end as lr, "
    f"{_texts(STEP_REASONS)}[reason + 1] as reason, case when clipped >= 0 then clipped = 1 end as clipped, "
    "loss_scale, wall_s, nullif(num_tokens, -1) as num_tokens, num_skipped_micros, num_skipped_tokens, "
    + ", ".join(f"case when {name}_odd then {name}_nan end as {name}_nan" for name in _FLOATS)
    + " from chunk",
    "select attempt, step, loss, grad_norm, lr, "
    f"list_position({_texts(STEP_REASONS)}, reason) as reason, coalesce(clipped::tinyint, -1) as clipped, "
    "loss_scale, wall_s, coalesce(num_tokens, -1) as num_tokens, num_skipped_micros, num_skipped_tokens, "
    + ", ".join(f"{name}_nan" for name in _FLOATS),
)

_BRIEF_STEPS: Final = (
    f"select attempt, step, loss, grad_norm, list_position({_texts(STEP_REASONS)}, reason) as reason, "
    "coalesce(num_tokens, -1) as num_tokens, loss_nan, grad_norm_nan"
)
"""Of `STEPS.read` what spikes are looked for in."""

IDS: Final = Kind(
    GROUP_IDS,
    {"row": "BIGINT", "table_row": "BIGINT", "digest": "BIGINT", "name": "VARCHAR"},
    "select row, nullif(table_row, -1) as table_row, case when has_digest then digest end as digest, "
    "name::varchar as name from chunk",
    "select row, coalesce(table_row, -1) as table_row, coalesce(digest, 0) as digest, "
    "digest is not null as has_digest, "
    f"case when strlen(name) <= {MAX_NAME_BYTES} then name end as name, "
    f"coalesce(strlen(name) > {MAX_NAME_BYTES}, false) as is_long",
)


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
            "temp_directory": "" if scratch is None else str(scratch),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )


def write(
    database: duckdb.DuckDBPyConnection,
    kind: Kind,
    columns: RowColumns | StepColumns | IdColumns,
    path: Path,
    *,
    compression: Literal["zstd", "uncompressed"] = "zstd",
) -> None:
    """Writes the columns as one Parquet file.

    Raises:
        duckdb.Error: It could not.
    """
    if isinstance(columns, RowColumns):
        arrays = _arrays_of_rows(columns)
    else:
        arrays = _arrays_of_steps(columns) if isinstance(columns, StepColumns) else columns._asdict()
    database.register("chunk", arrays)
    try:
        _copy(database, kind.write, kind, path, compression)
    finally:
        database.unregister("chunk")


def join(database: duckdb.DuckDBPyConnection, kind: Kind, pieces: list[Path], path: Path) -> None:
    """Writes the records of several files, in their order, as one, streaming.

    Raises:
        duckdb.Error: It could not.
    """
    files = ", ".join(map(_quoted, pieces))
    _copy(database, f"select * from read_parquet([{files}], hive_partitioning=false)", kind, path, "zstd")


def group_sizes(database: duckdb.DuckDBPyConnection, kind: Kind, file: str) -> list[tuple[int, int, int]]:
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


def read_rows(
    database: duckdb.DuckDBPyConnection,
    file: str,
    first: int,
    num_records: int,
    *,
    rank: int,
    rows: NDArray[np.int64] | None = None,
) -> RowColumns:
    """The row records from `first` on, of a file whose schema was looked at.

    Args:
        database: From `connect`.
        file: Its path for DuckDB.
        first: How many records stand before them.
        num_records: How many they are.
        rank: The rank that recorded them.
        rows: (N,) if given, only these rows are asked for; others come along where the list is long.

    Raises:
        BadBlockError: They do not hold together.
        duckdb.Error: They cannot be read.
    """
    only = "" if rows is None or rows.size > _MAX_LISTED else f" and row in ({', '.join(map(str, rows.tolist()))})"
    found = _fetch(database, ROWS.read, file, first, num_records, only=only)
    loss_sum = found["loss_sum"]
    odd = found["loss_sum_nan"] != 0
    if odd.any():
        loss_sum = loss_sum.copy()
        loss_sum.view(np.int32)[odd] = found["loss_sum_nan"][odd]
    _demand_within(found["num_tokens"], 0, 2**31 - 1, "tokens")
    return RowColumns(
        attempt=_attempts(found),
        step=found["step"],
        micro=found["micro"],
        rank=np.full(found["row"].size, rank, np.int32),
        row=found["row"],
        loss_sum=loss_sum,
        num_tokens=found["num_tokens"],
        reason=_reasons(found, VERDICT_REASONS),
        keep=found["keep"],
    )


def read_steps(
    database: duckdb.DuckDBPyConnection, file: str, first: int, num_records: int, *, rank: int, brief: bool = False
) -> StepColumns:
    """The step records from `first` on; as `read_rows`. `brief`: with the details as nobody knows them."""
    found = _fetch(database, _BRIEF_STEPS if brief else STEPS.read, file, first, num_records)
    if brief:
        zero = np.zeros(num_records, np.int64)
        none_odd = np.ma.MaskedArray(zero, mask=True)
        nothing = np.ma.MaskedArray(zero.view(np.float64), mask=True)
        found |= dict.fromkeys(_FLOATS[2:], nothing) | {f"{name}_nan": none_odd for name in _FLOATS[2:]}
        found |= {"clipped": np.full(num_records, -1, np.int8), "num_skipped_micros": zero, "num_skipped_tokens": zero}
    floats, known = {}, {}
    for name in _FLOATS:
        values, odd = found[name], found[f"{name}_nan"]
        known[name] = ~np.ma.getmaskarray(values)
        floats[name] = np.where(known[name], np.ma.getdata(values), np.nan)
        is_odd = ~np.ma.getmaskarray(odd)
        floats[name].view(np.int64)[is_odd] = np.ma.getdata(odd)[is_odd]
    return StepColumns(
        attempt=_attempts(found),
        rank=np.full(num_records, rank, np.int32),
        step=found["step"],
        loss=floats["loss"],
        grad_norm=floats["grad_norm"],
        has_grad_norm=known["grad_norm"],
        lr=floats["lr"],
        has_lr=known["lr"],
        reason=_reasons(found, STEP_REASONS),
        clipped=found["clipped"],
        loss_scale=floats["loss_scale"],
        wall_s=floats["wall_s"],
        num_tokens=found["num_tokens"],
        num_skipped_micros=found["num_skipped_micros"],
        num_skipped_tokens=found["num_skipped_tokens"],
    )


def read_ids(database: duckdb.DuckDBPyConnection, file: str, first: int, num_records: int) -> IdColumns:
    """The ids from `first` on, in the order handed over; as `read_rows`."""
    found = _fetch(database, IDS.read, file, first, num_records)
    if found["is_long"].any():
        raise BadBlockError(f"a name beyond {MAX_NAME_BYTES} bytes")
    if num_records and found["table_row"].min() < -1:
        raise BadBlockError("a row of the table below -1")
    name = np.ma.getdata(found["name"]).astype(np.object_)
    name[np.ma.getmaskarray(found["name"])] = None
    return IdColumns(found["row"], found["table_row"], found["digest"], found["has_digest"], name)


def _copy(database: duckdb.DuckDBPyConnection, query: str, kind: Kind, path: Path, compression: str) -> None:
    # Bloom filters would be a tenth of the file, and nobody looks a row up by equality here.
    database.execute(
        f"copy ({query}) to {_quoted(path)} (format parquet, compression {compression}, parquet_version v2, "
        f"row_group_size {kind.group}, write_bloom_filter false)"
    )


def _fetch(
    database: duckdb.DuckDBPyConnection, read: str, file: str, first: int, num_records: int, *, only: str = ""
) -> dict[str, NDArray[Any]]:
    """The arrays of so many records, or of some of them; only columns that may be unknown are masked."""
    found = database.execute(
        f"{read} from read_parquet(?, file_row_number=true, hive_partitioning=false) "
        f"where file_row_number >= {first} and file_row_number < {first + num_records}{only}",
        [file],
    ).fetchnumpy()
    optional = {"name", *_FLOATS[1:], *(f"{name}_nan" for name in _FLOATS)}
    for name, values in found.items():
        if values.size > num_records or (values.size < num_records and not only):
            raise BadBlockError(f"{values.size} records where {num_records} should be")
        if isinstance(values, np.ma.MaskedArray) and name not in optional:
            if np.ma.getmaskarray(values).any():
                raise BadBlockError(f"{name} is missing")
            found[name] = values.data
    return found


def _arrays_of_rows(columns: RowColumns) -> dict[str, NDArray[Any]]:
    bits = columns.loss_sum.view(np.int32)
    is_odd = np.isnan(columns.loss_sum) & (bits != _NAN32)
    return {
        **columns._asdict(),
        "finite": np.isfinite(columns.loss_sum),
        "loss_sum_nan": np.where(is_odd, bits, 0).astype(np.int32),
    }


def _arrays_of_steps(columns: StepColumns) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = columns._asdict()
    known = {"grad_norm": columns.has_grad_norm, "lr": columns.has_lr}
    for name in _FLOATS:
        values = arrays[name]
        bits = values.view(np.int64)
        arrays[f"{name}_nan"] = bits
        arrays[f"{name}_odd"] = (np.isnan(values) | ~known.get(name, np.bool_(True))) & (bits != _NAN64)
    return arrays


def _attempts(found: dict[str, NDArray[Any]]) -> NDArray[np.int32]:
    _demand_within(found["attempt"], 0, _MAX_ATTEMPT, "attempt")
    return found["attempt"]


def _reasons(found: dict[str, NDArray[Any]], reasons: tuple[str, ...]) -> NDArray[np.uint8]:
    _demand_within(found["reason"], 1, len(reasons), "reason")
    return (found["reason"] - 1).astype(np.uint8)


def _demand_within(values: NDArray[Any], low: int, high: int, name: str) -> None:
    if values.size and (values.min() < low or values.max() > high):
        raise BadBlockError(f"{name} outside {low} to {high}")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
