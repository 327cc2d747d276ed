r"""Types the lines of a `rewind.jsonl` that look as its writers write them: nearly all, and at DuckDB's speed.

    lines -> what is left without digits and signs, one of a few shapes -> DuckDB types them -> counts agree? -> columns
                                                                                                  | no
                            a pattern over every letter decides which lines DuckDB gets <---------+

Enters: a block of lines. Leaves: columns of those it typed; the others are for `lines`. DuckDB's casts are
generous ("2" and 2.4 become 2, a comma may trail), so it is never asked without a check of the whole line. The pattern
alone is exact, and takes as long as the typing. A line's shape with what is checked of the result is as exact, and
takes a quarter: a letter out of place is another shape; a digit out of place, or a number out of range, leaves a NULL,
another number of entries, an infinity, or an error of DuckDB. Then the block is typed again behind the pattern.

Invariant: whatever is typed here has the value that JSON gives it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

MAX_SHAPES: Final = 4_096
"""Shapes remembered; a log of one batch size has a handful, more where losses have exponents."""

_WHOLE = "-?(?:0|[1-9][0-9]{0,17})"
_COUNT = "(?:0|[1-9][0-9]{0,8})"
_NUMBER = r"(?:null|-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,2})?)"
_MAX_COUNT: Final = 999_999_999


def _list_of(entry: str) -> str:
    return rf"\[(?:{entry}(?:, ?{entry})*)?\]"


def _line(whole: str, count: str, number: str) -> str:
    return (
        rf'\{{"kind": ?"batch", ?"step": ?{whole}, ?"micro": ?{count}, ?"rows": ?({_list_of(whole)}), '
        rf'?"row_loss": ?({_list_of(number)}), ?"row_tokens": ?({_list_of(count)})\}}\s*'
    )


USUAL_LINE: Final = _line(_WHOLE, _COUNT, _NUMBER).replace("(\\[", "(?:\\[")
"""The pattern over every letter; it admits no number that could overflow."""

_NO_DIGITS: Final = b"0123456789-"
_USUAL_SHAPE: Final = re.compile(_line("", "", r"(?:null|\.?(?:[eE]\+?)?)").encode())
"""The same without digits and signs."""

_TYPES: Final = (
    '{"kind":"VARCHAR","step":"BIGINT","micro":"INTEGER","rows":["BIGINT"],"row_loss":["DOUBLE"],'
    '"row_tokens":["BIGINT"]}'
)

# MATERIALIZED: else the optimizer parses the line once for every field that is taken out of it.
_TYPE_ALL: Final = f"""
with typed as materialized (select place, from_json(line, '{_TYPES}') as batch from lines where true),
batches as (
    select place, unnest(batch) from typed
    where batch.kind = 'batch' and len(batch.rows) = len(batch.row_loss) and len(batch.rows) = len(batch.row_tokens)
)
select place, step, micro, unnest(rows) as "row", unnest(row_loss) as loss, unnest(row_tokens) as tokens from batches
"""
_TYPE_THE_USUAL: Final = _TYPE_ALL.replace("where true", f"where regexp_full_match(line, '{USUAL_LINE}')")

Columns = dict[str, NDArray[Any]]


class UsualLines:
    """Types block after block of one file."""

    def __init__(self) -> None:
        self._database = duckdb.connect(config={"threads": 1})
        self._shapes: dict[bytes, int | None] = {}

    def read(self, data: bytes, texts: list[str]) -> Columns:
        """Types the usual lines of a block.

        Args:
            data: The block, its lines parted by a line feed.
            texts: The same lines as text.

        Returns:
            Parallel columns (R rows): `place` of the line in the block, `step`, `micro`, `row`, `loss` (NaN for null)
            and `tokens`.
        """
        columns = self._read_by_shape(data, texts)
        if columns is None:
            columns = self._type(_TYPE_THE_USUAL, np.arange(len(texts)), np.array(texts, dtype=object))
        loss = columns["loss"]
        if isinstance(loss, np.ma.MaskedArray):
            columns["loss"] = loss.filled(np.nan)
        return columns

    def _read_by_shape(self, data: bytes, texts: list[str]) -> Columns | None:
        """The lines of usual shape; None where one of them is not what its shape promises."""
        shapes = data.translate(None, _NO_DIGITS).split(b"\n")
        counts = Counter(shapes)
        if len(self._shapes) > MAX_SHAPES:
            self._shapes.clear()
        known = {shape: self._known(shape) for shape in counts}
        is_usual = _mark(shapes, unusual={shape for shape, size in known.items() if size is None})
        if not is_usual.any():
            return None
        try:
            columns = self._type(_TYPE_ALL, np.flatnonzero(is_usual), np.array(texts, dtype=object)[is_usual])
        except duckdb.Error:
            return None
        num_entries = sum(number * (known[shape] or 0) for shape, number in counts.items())
        return columns if _is_as_promised(columns, num_entries=num_entries) else None

    def _known(self, shape: bytes) -> int | None:
        if shape not in self._shapes:
            self._shapes[shape] = _num_entries(shape)
        return self._shapes[shape]

    def _type(self, query: str, place: NDArray[np.int64], lines: NDArray[np.object_]) -> Columns:
        self._database.register("lines", {"place": place, "line": lines})
        try:
            columns: Columns = self._database.execute(query).fetchnumpy()
        finally:
            self._database.unregister("lines")
        return columns


def _mark(shapes: list[bytes], *, unusual: set[bytes]) -> NDArray[np.bool_]:
    """Marks the lines of usual shape; nearly every block has one other at most, the empty one behind its end."""
    if not unusual or (unusual == {b""} and shapes.index(b"") == len(shapes) - 1):
        is_usual = np.ones(len(shapes), np.bool_)
        is_usual[-1] = not unusual
        return is_usual
    return np.fromiter((shape not in unusual for shape in shapes), np.bool_, len(shapes))


def _num_entries(shape: bytes) -> int | None:
    """How many rows a line of this shape holds; None where it is not usual."""
    match = _USUAL_SHAPE.fullmatch(shape)
    if match is None:
        return None
    sizes = {entries.count(b",") + 1 for entries in match.groups()}
    return sizes.pop() if len(sizes) == 1 else None


def _is_as_promised(columns: Columns, *, num_entries: int) -> bool:
    """Whether every entry is there, all numbers are in range, and nothing is NULL but losses.

    A loss is NULL where the text says null, and nowhere else: a number of whatever size is a float to DuckDB.
    """
    others = [column for name, column in columns.items() if name != "loss"]
    if columns["loss"].size != num_entries or any(map(np.ma.is_masked, others)) or np.isinf(columns["loss"]).any():
        return False
    micro, tokens = columns["micro"], columns["tokens"]
    return bool(micro.min() >= 0 and tokens.min() >= 0 and tokens.max() <= _MAX_COUNT)
