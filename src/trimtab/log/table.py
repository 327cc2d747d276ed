"""Tables for users: one value, read as DuckDB, narwhals, numpy, pandas, Polars or Arrow.

Enters: a source's columns, chunk by chunk. Leaves: the same table in the form asked for (FORMAT.md, "Tables").
Invariant: nothing is imported or read before it is asked for; a missing package is named with the command that installs
it.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MissingExtraError
from trimtab.log.columns import RowColumns
from trimtab.log.source import Source
from trimtab.log.steps import step_lines, step_sums
from trimtab.values import STEP_REASONS, VERDICT_REASONS

if TYPE_CHECKING:
    import duckdb
    import narwhals
    import pandas
    import polars
    import pyarrow

Chunk = dict[str, NDArray[Any]]


class _Column(NamedTuple):
    """One column: its name in the chunks, the texts its codes stand for, and when it is missing, in SQL."""

    name: str
    texts: tuple[str, ...] = ()
    missing: str = "false"
    sql: str = ""


def _or_nan(name: str) -> str:
    """The column with its NaNs: DuckDB takes a NaN in a numpy array for a missing value."""
    return f"coalesce({name}, 'nan'::float)"


_ROWS: Final = (
    _Column("attempt"),
    _Column("step"),
    _Column("micro"),
    _Column("rank"),
    _Column("row"),
    _Column("loss_sum", sql=_or_nan("loss_sum")),
    _Column("num_tokens"),
    _Column("finite"),
    _Column("verdict", texts=VERDICT_REASONS),
)
_STEPS: Final = (
    _Column("attempt"),
    _Column("step"),
    _Column("loss", missing="not has_loss", sql=_or_nan("loss")),
    _Column("num_tokens", missing="num_tokens < 0"),
    _Column("finite"),
    _Column("grad_norm", missing="not has_grad_norm", sql=_or_nan("grad_norm")),
    _Column("clipped", missing="clipped < 0", sql="clipped = 1"),
    _Column("lr", missing="not has_lr", sql=_or_nan("lr")),
    _Column("stepped", missing="stepped < 0", sql="stepped = 1"),
    _Column("reason", texts=STEP_REASONS, missing=f"reason >= {len(STEP_REASONS)}"),
    _Column("wall_s", missing="wall_s is null"),
)
_EVENTS: Final = (
    _Column("step"),
    _Column("time"),
    _Column("kind", sql="kind::varchar"),
    _Column("facts", sql="facts::varchar"),
)


_IDS: Final = (
    _Column("row"),
    _Column("table_row", missing="table_row < 0"),
    _Column("digest", missing="not has_digest"),
    _Column("name", sql="name::varchar"),
)


class Table:
    """One table of a log, in whichever form is asked for; `Log.steps()`, `.rows()`, `.events()`, `.ids()` make it."""

    def __init__(self, columns: Sequence[_Column], chunks: Callable[[], Iterator[Chunk]]) -> None:
        self._columns = columns
        self._chunks = chunks

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self._columns)

    @cached_property
    def native(self) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation; the log is read into a database of its own, which spills to disk when it is large.

        Missing values are NULL; NaN stays NaN.
        """
        import duckdb

        # DuckDB would spill into a folder `.tmp` below the current one.
        spill = Path(tempfile.gettempdir()) / f"trimtab-{os.getpid()}-{secrets.token_hex(4)}"
        connection = duckdb.connect(config={"temp_directory": str(spill)})
        picked = ", ".join(
            f"case when {column.missing} then null else {column.sql or column.name} end as {column.name}"
            for column in self._columns
        )
        made = False
        for chunk in self._chunks():
            connection.register("chunk", chunk)
            verb = "insert into records" if made else "create table records as"
            connection.execute(f"{verb} select {picked} from chunk")
            made = True
        connection.unregister("chunk")
        shown = ", ".join(
            f"{_list_of(column.texts)}[{column.name} + 1] as {column.name}" if column.texts else column.name
            for column in self._columns
        )
        return connection.sql(f"select {shown} from records")

    @property
    def lazy(self) -> narwhals.LazyFrame[Any]:
        """A narwhals LazyFrame over `native`."""
        import narwhals

        return narwhals.from_native(self.native)

    def numpy(self) -> dict[str, NDArray[Any]]:
        """A dict of arrays, one a column. Texts are `object` arrays of `str`.

        What is missing is NaN in float columns, -1 in `clipped` and `stepped` (int8: 1, 0, -1), in `table_row` and in a
        step's `num_tokens`, 0 in `digest`, None in `name`, "" in other texts.
        """
        chunks = list(self._chunks())
        joined = {column.name: np.concatenate([chunk[column.name] for chunk in chunks]) for column in self._columns}
        for column in self._columns:
            if column.texts:
                joined[column.name] = np.array([*column.texts, ""], object)[joined[column.name]]
        return joined

    def pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame. Raises `MissingExtraError` without pandas."""
        _need("pandas", feature="Table.pandas()", command="pip install pandas")
        return self.native.df()

    def polars(self) -> polars.DataFrame:
        """A Polars DataFrame. Raises `MissingExtraError` without Polars or pyarrow, over which DuckDB hands it on."""
        _need("polars", "pyarrow", feature="Table.polars()", command="pip install polars pyarrow")
        frame: polars.DataFrame = self.native.pl()
        return frame

    def arrow(self) -> pyarrow.Table:
        """A pyarrow Table. Raises `MissingExtraError` without pyarrow."""
        _need("pyarrow", feature="Table.arrow()", command="pip install pyarrow")
        return self.native.to_arrow_table()

    def __repr__(self) -> str:
        return f"Table({', '.join(self.columns)})"


def rows_table(source: Source) -> Table:
    """One line a row record, in the order recorded, rank by rank."""

    def chunks() -> Iterator[Chunk]:
        has_rows = False
        for block in source.row_blocks():
            has_rows = True
            yield _row_chunk(block)
        if not has_rows:
            yield _row_chunk(RowColumns.empty())  # a table without lines has its columns all the same

    return Table(_ROWS, chunks)


def steps_table(source: Source) -> Table:
    """One line an attempt and step, ascending."""

    def chunks() -> Iterator[Chunk]:
        yield step_lines(step_sums(source.row_blocks(brief=True)), source.step_columns())._asdict()

    return Table(_STEPS, chunks)


def events_table(source: Source) -> Table:
    """One line an event, by time; the facts as JSON text."""

    def chunks() -> Iterator[Chunk]:
        events = source.event_list()
        yield {
            "step": np.array([event.step for event in events], np.int64),
            "time": np.array([event.time for event in events], np.float64),
            # A lone surrogate, which JSON can spell, is no text for DuckDB.
            "kind": np.array([e.kind.encode("utf-8", "backslashreplace").decode("utf-8") for e in events], object),
            "facts": np.array([json.dumps(event.facts) for event in events], object),
        }

    return Table(_EVENTS, chunks)


def ids_table(source: Source) -> Table:
    """One line a row of which more is known than its number, ascending."""

    def chunks() -> Iterator[Chunk]:
        yield source.id_columns()._asdict()

    return Table(_IDS, chunks)


def _row_chunk(block: RowColumns) -> Chunk:
    return {
        **{
            name: getattr(block, name) for name in ("attempt", "step", "micro", "rank", "row", "loss_sum", "num_tokens")
        },
        "finite": np.isfinite(block.loss_sum),
        "verdict": block.reason,
    }


def _list_of(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"


def _need(*packages: str, feature: str, command: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"{feature} needs the package {package}, which is not installed: {command}"
            ) from error
