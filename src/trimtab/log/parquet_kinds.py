"""The kinds of record that stand in Parquet, one table of them: its columns, and how ours become those and back.

Enters: columns of the log, or the arrays that DuckDB made of a file's. Leaves: arrays for DuckDB, or columns of the
log. Invariant: what is read back is bit by bit what was written, NaNs too, whose bits DuckDB does not keep: those that
are not the usual ones stand in a column beside. What a file holds is believed only within its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import IdColumns, RowColumns, StepColumns
from trimtab.log.ids import MAX_NAME_BYTES
from trimtab.log.parts import PartReader
from trimtab.log.planes import BadBlockError
from trimtab.log.segment_info import IDS_FILE, ROWS_FILE, STEPS_FILE
from trimtab.values import STEP_REASONS, VERDICT_REASONS

GROUP_RECORDS: Final = 1 << 17
"""Row or step records in a row group: what a flipped byte costs, and what is skipped where other steps are read."""

GROUP_IDS: Final = 1 << 14
"""Likewise for ids, whose names may take 4 KiB each."""

_MAX_ATTEMPT: Final = 0xFFFF
_NAN32: Final = int(np.array(np.nan, np.float32).view(np.int32))
_NAN64: Final = int(np.array(np.nan, np.float64).view(np.int64))

Columns = TypeVar("Columns", RowColumns, StepColumns, IdColumns)
Arrays = dict[str, NDArray[Any]]


class Kind(NamedTuple, Generic[Columns]):
    """How one kind of record stands in Parquet.

    Attributes:
        file: Name of the file in a segment.
        noun: What its records are called.
        group: Records in a row group.
        types: Column and DuckDB type, in order.
        optional: Arrays in which a value may be missing.
        write: SQL from what `arrays` gives, registered as `chunk`, to those columns.
        read: SQL from those columns to what `records` takes.
        read_brief: Likewise, without what steps and spikes are not found by; None where all is needed.
        arrays: From the columns of the log to arrays.
        records: From arrays, and the rank that recorded them, to the columns of the log; raises `BadBlockError`. What
            `read_brief` leaves out comes as nobody knows it.
        blocks: The records of this kind in a part, block by block.
    """

    file: str
    noun: str
    group: int
    types: dict[str, str]
    optional: frozenset[str]
    write: str
    read: str
    read_brief: str | None
    arrays: Callable[[Columns], Arrays]
    records: Callable[[Arrays, int], Columns]
    blocks: Callable[[PartReader], Iterator[Columns]]


_FLOATS: Final = ("loss", "grad_norm", "lr", "loss_scale", "wall_s")


# Row records.


def _arrays_of_rows(columns: RowColumns) -> Arrays:
    bits = columns.loss_sum.view(np.int32)
    is_odd = np.isnan(columns.loss_sum) & (bits != _NAN32)
    return {
        **columns._asdict(),
        "finite": np.isfinite(columns.loss_sum),
        "loss_sum_nan": np.where(is_odd, bits, 0).astype(np.int32),
    }


def _rows_of(found: Arrays, rank: int) -> RowColumns:
    loss_sum = found["loss_sum"]
    num_records = loss_sum.size
    if "row" not in found:
        found |= {"micro": _all(num_records, np.int32(0)), "row": _all(num_records, np.int64(0))}
        found["reason"] = _all(num_records, np.int32(1))
    odd = found["loss_sum_nan"] != 0
    if odd.any():
        loss_sum = loss_sum.copy()
        loss_sum.view(np.int32)[odd] = found["loss_sum_nan"][odd]
    _demand_within(found["num_tokens"], 0, 2**31 - 1, "tokens")
    return RowColumns(
        attempt=_attempts(found),
        step=found["step"],
        micro=found["micro"],
        rank=_all(num_records, np.int32(rank)),
        row=found["row"],
        loss_sum=loss_sum,
        num_tokens=found["num_tokens"],
        reason=_reasons(found, VERDICT_REASONS),
        keep=found["keep"],
    )


# Step records.


def _arrays_of_steps(columns: StepColumns) -> Arrays:
    arrays: Arrays = columns._asdict()
    known = {"grad_norm": columns.has_grad_norm, "lr": columns.has_lr}
    for name in _FLOATS:
        values = arrays[name]
        bits = values.view(np.int64)
        arrays[f"{name}_nan"] = bits
        arrays[f"{name}_odd"] = (np.isnan(values) | ~known.get(name, np.bool_(True))) & (bits != _NAN64)
    return arrays


def _steps_of(found: Arrays, rank: int) -> StepColumns:
    num_records = found["step"].size
    if "lr" not in found:
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


# Ids.


def _ids_of(found: Arrays) -> IdColumns:
    if found["is_long"].any():
        raise BadBlockError(f"a name beyond {MAX_NAME_BYTES} bytes")
    if found["row"].size and found["table_row"].min() < -1:
        raise BadBlockError("a row of the table below -1")
    name = np.ma.getdata(found["name"]).astype(np.object_)
    name[np.ma.getmaskarray(found["name"])] = None
    return IdColumns(found["row"], found["table_row"], found["digest"], found["has_digest"], name)


# Of several kinds.


def _attempts(found: Arrays) -> NDArray[np.int32]:
    _demand_within(found["attempt"], 0, _MAX_ATTEMPT, "attempt")
    return found["attempt"]


def _reasons(found: Arrays, reasons: tuple[str, ...]) -> NDArray[np.uint8]:
    _demand_within(found["reason"], 1, len(reasons), "reason")
    return (found["reason"] - 1).astype(np.uint8)


def _demand_within(values: NDArray[Any], low: int, high: int, name: str) -> None:
    if values.size and (values.min() < low or values.max() > high):
        raise BadBlockError(f"{name} outside {low} to {high}")


def _all(num_records: int, value: np.generic) -> NDArray[Any]:
    """The same value for each record, which takes no memory; not to be written to."""
    return np.broadcast_to(value, num_records)


def _texts(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"


ROWS: Final = Kind(
    file=ROWS_FILE,
    noun="row records",
    group=GROUP_RECORDS,
    types={
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
    optional=frozenset(),
    # DuckDB takes a NaN in a numpy array for a missing value.
    write=(
        "select attempt, step, micro, rank, row, coalesce(loss_sum, 'nan'::float) as loss_sum, num_tokens, finite, "
        f"{_texts(VERDICT_REASONS)}[reason + 1] as verdict, keep, nullif(loss_sum_nan, 0) as loss_sum_nan from chunk"
    ),
    read=(
        "select attempt, step, micro, row, loss_sum, num_tokens, "
        f"list_position({_texts(VERDICT_REASONS)}, verdict) as reason, keep, coalesce(loss_sum_nan, 0) as loss_sum_nan"
    ),
    read_brief="select attempt, step, loss_sum, num_tokens, keep, coalesce(loss_sum_nan, 0) as loss_sum_nan",
    arrays=_arrays_of_rows,
    records=_rows_of,
    blocks=lambda part: (columns for _, columns in part.row_blocks()),
)

STEPS: Final = Kind(
    file=STEPS_FILE,
    noun="step records",
    group=GROUP_RECORDS,
    types={
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
    optional=frozenset((*_FLOATS[1:], *(f"{name}_nan" for name in _FLOATS))),
    write=(
        "select attempt, step, rank, coalesce(loss, 'nan'::double) as loss, "
        "case when has_grad_norm then coalesce(grad_norm, 'nan'::double) end as grad_norm, "
        "case when has_lr then coalesce(lr, 'nan'::double) end as lr, "
        f"{_texts(STEP_REASONS)}[reason + 1] as reason, case when clipped >= 0 then clipped = 1 end as clipped, "
        "loss_scale, wall_s, nullif(num_tokens, -1) as num_tokens, num_skipped_micros, num_skipped_tokens, "
        + ", ".join(f"case when {name}_odd then {name}_nan end as {name}_nan" for name in _FLOATS)
        + " from chunk"
    ),
    read=(
        "select attempt, step, loss, grad_norm, lr, "
        f"list_position({_texts(STEP_REASONS)}, reason) as reason, coalesce(clipped::tinyint, -1) as clipped, "
        "loss_scale, wall_s, coalesce(num_tokens, -1) as num_tokens, num_skipped_micros, num_skipped_tokens, "
        + ", ".join(f"{name}_nan" for name in _FLOATS)
    ),
    read_brief=(
        f"select attempt, step, loss, grad_norm, list_position({_texts(STEP_REASONS)}, reason) as reason, "
        "coalesce(num_tokens, -1) as num_tokens, loss_nan, grad_norm_nan"
    ),
    arrays=_arrays_of_steps,
    records=_steps_of,
    blocks=lambda part: part.step_blocks(),
)

IDS: Final = Kind(
    file=IDS_FILE,
    noun="ids",
    group=GROUP_IDS,
    types={"row": "BIGINT", "table_row": "BIGINT", "digest": "BIGINT", "name": "VARCHAR"},
    optional=frozenset({"name"}),
    write=(
        "select row, nullif(table_row, -1) as table_row, case when has_digest then digest end as digest, "
        "name::varchar as name from chunk"
    ),
    read=(
        "select row, coalesce(table_row, -1) as table_row, coalesce(digest, 0) as digest, "
        "digest is not null as has_digest, "
        f"case when strlen(name) <= {MAX_NAME_BYTES} then name end as name, "
        f"coalesce(strlen(name) > {MAX_NAME_BYTES}, false) as is_long"
    ),
    read_brief=None,
    arrays=IdColumns._asdict,
    records=lambda found, _: _ids_of(found),
    blocks=lambda part: part.id_blocks(),
)

KINDS: Final[dict[str, Kind[Any]]] = {kind.file: kind for kind in (ROWS, STEPS, IDS)}
"""All of them, by the file that they stand in."""
