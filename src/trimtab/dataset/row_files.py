"""Rows of a file as a script would have read them: JSON lines, JSON, CSV, text, Parquet.

Enters: the path of a file that the user named. Leaves: `Data`, one for each way in which scripts read such a file: a
line of text may be a row by itself, or the column `text` of one. Which it was, the fingerprint says. Invariant: a row
is what the script got, to the type: no repair, no guess.

Of JSON lines, text and Parquet only the rows that are asked for are in memory, beside 8 bytes a line.
"""

from __future__ import annotations

import csv
import json
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trimtab.dataset.data import Data, SequenceData, UnreadableRowError
from trimtab.errors import UsageError

MAX_WHOLE_BYTES: Final = 1 << 30
"""Largest JSON or CSV file, which is read whole."""

MAX_LINE_BYTES: Final = 1 << 28
"""Longest line that is read as a row."""

_PARQUET_BATCH: Final = 100
_MISSING: Final = frozenset(
    {
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
        *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    }
)
"""Cells that pandas, and with it `load_dataset("csv")`, takes for missing."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_field_limit = threading.Lock()


class LineData:
    """Lines of a file, found by their places in it.

    Args:
        path: The file.
        read_row: What makes a row of a line, its end cut off.
        with_blank: Whether a line without anything on it is a row.
        source: What it is, as words of a sentence.
    """

    def __init__(self, path: Path, read_row: Callable[[bytes], object], *, with_blank: bool, source: str) -> None:
        self._path = path
        self._read_row = read_row
        self.source = source
        self._starts = array("q")
        self._line_numbers = array("q")
        with path.open("rb") as file:
            start = len(_BYTE_ORDER_MARK) if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0
            file.seek(start)
            for number, line in enumerate(file, start=1):
                if with_blank or line.strip():
                    self._starts.append(start)
                    self._line_numbers.append(number)
                start += len(line)
        self.num_rows = len(self._starts)

    def rows(self, numbers: Sequence[int]) -> Iterator[object]:
        """The rows, each read from its place."""
        with self._path.open("rb") as file:
            for number in numbers:
                where = f"line {self._line_numbers[number]} of {self.source}"
                file.seek(self._starts[number])
                line = file.readline(MAX_LINE_BYTES + 1)
                if len(line) > MAX_LINE_BYTES:
                    raise UnreadableRowError(f"{where} is longer than {MAX_LINE_BYTES} bytes")
                try:
                    row = self._read_row(line.removesuffix(b"\n").removesuffix(b"\r"))
                except (ValueError, RecursionError) as error:
                    raise UnreadableRowError(f"{where}: {type(error).__name__}: {error}") from error
                yield row


class ParquetData:
    """Rows of a Parquet file, read by DuckDB.

    Args:
        path: The file.
        source: What it is, as words of a sentence.

    Raises:
        UsageError: It is no Parquet file.
    """

    def __init__(self, path: Path, *, source: str) -> None:
        import duckdb

        if set(str(path)) & set("*?[{"):
            raise UsageError(f"{source}: DuckDB takes *, ?, [ and {{ in a path for a pattern; rename it to read it.")
        self._connection = duckdb.connect(
            config={"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
        )
        self._error: type[Exception] = duckdb.Error
        self._path = str(path)
        self.source = source
        try:
            counted = self._connection.execute("select count(*) from read_parquet($1)", [self._path]).fetchone()
        except duckdb.Error as error:
            raise UsageError(f"{source} is no Parquet file, or damaged ({error}).") from error
        assert counted is not None, "a count has one line"
        self.num_rows: int = counted[0]

    def rows(self, numbers: Sequence[int]) -> Iterator[object]:
        """The rows as dicts; whole passes in the order of the file."""
        try:
            if numbers == range(self.num_rows):
                yield from self._all()
                return
            for at in range(0, len(numbers), _PARQUET_BATCH):
                yield from self._some(list(numbers[at : at + _PARQUET_BATCH]))
        except self._error as error:
            raise UnreadableRowError(f"{self.source}: {error}") from error

    def _all(self) -> Iterator[dict[str, object]]:
        result = self._connection.cursor().execute("select * from read_parquet($1)", [self._path])
        names = [column[0] for column in result.description]
        while lines := result.fetchmany(_PARQUET_BATCH):
            for line in lines:
                yield dict(zip(names, line, strict=True))

    def _some(self, numbers: list[int]) -> Iterator[dict[str, object]]:
        result = self._connection.execute(
            "select * from read_parquet($1, file_row_number = true) where file_row_number in (select unnest($2))",
            [self._path, numbers],
        )
        # The number comes last; a column of the user's with that name is refused by DuckDB.
        names = [column[0] for column in result.description][:-1]
        found = {line[-1]: dict(zip(names, line, strict=False)) for line in result.fetchall()}
        for number in numbers:
            yield found[number]


def open_row_file(path: Path) -> list[Data]:
    """Opens a file in every way in which a script may have read it, the likeliest first.

    Args:
        path: A `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.txt` or `.parquet`.

    Raises:
        UsageError: It is of no such kind, too large to be read whole, or not what its name says.
    """
    opening = _OPENINGS.get(path.suffix.lower())
    if opening is None:
        raise UsageError(
            f"{path}: rows are read from {', '.join(sorted(_OPENINGS))}, .arrow, or a folder that save_to_disk left. "
            "For anything else: --data MODULE:FUNCTION, a function that returns the dataset."
        )
    return opening(path)


def _open_json_lines(path: Path) -> list[Data]:
    return [LineData(path, json.loads, with_blank=False, source=str(path))]


def _open_text(path: Path) -> list[Data]:
    def as_column(line: bytes) -> object:
        return {"text": line.decode()}

    return [
        LineData(path, read_row, with_blank=with_blank, source=str(path))
        for with_blank in (True, False)
        for read_row in (as_column, bytes.decode)
    ]


def _open_json(path: Path) -> list[Data]:
    try:
        rows = json.loads(_whole(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON that can be read ({type(error).__name__}: {error}).") from error
    if not isinstance(rows, list):
        raise UsageError(f"{path} holds no list of rows, but a {type(rows).__name__}: use JSON lines, or --data M:F.")
    return [SequenceData(rows, num_rows=len(rows), source=str(path))]


def _open_csv(path: Path) -> list[Data]:
    text = _whole(path).decode("utf-8-sig", "surrogateescape")
    with _field_limit:
        limit = csv.field_size_limit(MAX_LINE_BYTES)  # the process's: put back below
        try:
            lines = csv.reader(text.splitlines(keepends=True), delimiter="\t" if path.suffix == ".tsv" else ",")
            names, *cells = [line for line in lines if line] or [[]]
        except csv.Error as error:
            raise UsageError(f"{path} is no CSV that can be read ({error}).") from error
        finally:
            csv.field_size_limit(limit)
    as_text = [dict(zip(names, line, strict=False)) for line in cells]
    columns = [_typed([line[at] if at < len(line) else "" for line in cells]) for at in range(len(names))]
    typed = [dict(zip(names, line, strict=True)) for line in zip(*columns, strict=True)]
    return [SequenceData(rows, num_rows=len(cells), source=str(path)) for rows in (typed, as_text)]


def _typed(cells: list[str]) -> list[Any]:
    """A column as pandas types it: whole numbers, else numbers, else truths, else text; None where it is missing."""
    present = [cell for cell in cells if cell not in _MISSING]
    makers: tuple[Callable[[str], object], ...] = (float, _truth) if len(present) < len(cells) else (int, float, _truth)
    for make in makers if present else ():
        try:
            return [None if cell in _MISSING else make(cell) for cell in cells]
        except (ValueError, KeyError):
            continue
    return [None if cell in _MISSING else cell for cell in cells]


def _truth(cell: str) -> bool:
    return {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}[cell]


def _open_parquet(path: Path) -> list[Data]:
    return [ParquetData(path, source=str(path))]


def _whole(path: Path) -> bytes:
    size_bytes = path.stat().st_size
    if size_bytes > MAX_WHOLE_BYTES:
        raise UsageError(
            f"{path} is {size_bytes} bytes, and at most {MAX_WHOLE_BYTES} are read at once: use JSON lines or Parquet."
        )
    return path.read_bytes()


_OPENINGS: Final[dict[str, Callable[[Path], list[Data]]]] = {
    ".jsonl": _open_json_lines,
    ".ndjson": _open_json_lines,
    ".json": _open_json,
    ".csv": _open_csv,
    ".tsv": _open_csv,
    ".txt": _open_text,
    ".parquet": _open_parquet,
}
