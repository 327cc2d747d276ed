"""Looks up the rows that a log names, in data that is proven to be the run's.

Enters: row numbers, what the log knows of the dataset, and data. Leaves: the rows, or why they are withheld. Invariant:
a row is given only where the fingerprint of the data is the log's, or, of a dataset without one, where the row's own
digest is: a wrong row beside a right number would be worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from trimtab.dataset.data import Data, UnreadableRowError
from trimtab.dataset.fingerprint import has_fingerprint
from trimtab.dataset.opening import open_recorded
from trimtab.errors import MissingExtraError, UsageError
from trimtab.spelling import row_digest
from trimtab.values import RunHeader

MAX_DIGESTED_ROWS: Final = 100_000
"""Rows in which those of a stream are looked for by their digests; a pass over short ones takes 2 s."""

MAX_SHOWN_COLUMNS: Final = 8
"""Columns named where data is not the run's."""

MAX_SHOWN_CHARS: Final = 40
"""Characters shown of such a name."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that were looked up.

    Attributes:
        rows: What was found, by row number.
        withheld: Why there are none, a clause; None where there are.
        source: Where they were read, as words; None where they were not.
    """

    rows: Mapping[int, object] = field(default_factory=dict)
    withheld: str | None = None
    source: str | None = None


def look_up(
    wanted: Sequence[int], *, header: RunHeader, digests: Callable[[], Mapping[int, int]], data: Sequence[Data] | None
) -> FoundRows:
    """Looks rows up.

    Args:
        wanted: Row numbers.
        header: What the log knows of the dataset.
        digests: Gives the digests of the wanted rows that the log holds; asked only where there is no fingerprint.
        data: Rows at hand, each way of reading them; None: those that the log says where to find.

    Returns:
        The rows, or the reason why they are withheld; damage to data is such a reason too.
    """
    is_recorded = data is None
    try:
        readings = open_recorded(header) if data is None else data
        if not readings:
            return FoundRows(withheld=_why_nothing(header, digests))
        if header.dataset_fingerprint is None:
            return _by_digest(digests(), readings)
        right = next((one for one in readings if _is_of_run(one, header)), None)
        if right is None:
            return FoundRows(withheld=_in_words(header, readings[0], is_recorded=is_recorded))
        return _by_number(wanted, right)
    except UnreadableRowError as error:
        return FoundRows(withheld=str(error))
    except MissingExtraError as error:
        return FoundRows(withheld=f"{error}, or pass --data" if is_recorded else str(error))
    except UsageError as error:
        # A sentence of its own elsewhere; here a clause.
        clause = str(error).removesuffix(".")
        return FoundRows(withheld=f"{clause}; pass --data" if is_recorded else clause)


def _is_of_run(data: Data, header: RunHeader) -> bool:
    fingerprint = header.dataset_fingerprint
    return (
        fingerprint is not None
        and data.num_rows == (header.num_rows if header.num_rows is not None else data.num_rows)
        and has_fingerprint(data, fingerprint)
    )


def _by_number(wanted: Sequence[int], data: Data) -> FoundRows:
    there = [row for row in wanted if 0 <= row < data.num_rows]
    if not there:
        which = f"row {wanted[0]} is" if len(wanted) == 1 else f"rows {wanted[0]}, ... are"
        return FoundRows(withheld=f"{which} not in {data.source}: they are 0 to {data.num_rows - 1}")
    return FoundRows(dict(zip(there, data.rows(there), strict=True)), source=data.source)


def _by_digest(digests: Mapping[int, int], readings: Sequence[Data]) -> FoundRows:
    """Finds rows by content: of a stream nobody knows where in the data a row stands."""
    if not digests:
        return FoundRows(withheld=_NO_FINGERPRINT)
    for data in readings:
        # A stream that was read twice has two numbers for one row.
        missing: dict[int, list[int]] = {}
        for row, digest in digests.items():
            missing.setdefault(digest, []).append(row)
        found: dict[int, object] = {}
        for content in data.rows(range(min(data.num_rows, MAX_DIGESTED_ROWS))):
            digest_here = row_digest(content)
            found |= dict.fromkeys(missing.pop(digest_here, ()) if digest_here is not None else (), content)
            if not missing:
                break
        if found:
            return FoundRows(found, source=data.source)
    return FoundRows(withheld=f"no row of {readings[0].source} has the content of one of these rows")


_NO_FINGERPRINT: Final = (
    "the log holds no fingerprint of its dataset (a stream, one with code of its own, or none was handed over), so "
    "nobody can tell which rows these are"
)


def _why_nothing(header: RunHeader, digests: Callable[[], Mapping[int, int]]) -> str:
    if header.dataset_fingerprint is None and not digests():
        return _NO_FINGERPRINT
    return "the rows were only in memory; pass --data"


def _in_words(header: RunHeader, data: Data, *, is_recorded: bool) -> str:
    """How the data differs. Not by fingerprints: those of a list and of a table differ though the rows be the same."""
    advice = "; pass --data" if is_recorded else ""
    if header.num_rows not in (None, data.num_rows):
        return f"the run's dataset has {header.num_rows} rows, {data.source} has {data.num_rows}{advice}"
    return (
        f"{data.source} has as many rows as the run's dataset, but other ones: values, order or columns differ "
        f"({_first_row(data)}){advice}"
    )


def _first_row(data: Data) -> str:
    row = next(iter(data.rows([0])), None) if data.num_rows else None
    if not isinstance(row, dict):
        return f"its first row is of type {type(row).__name__}"
    names = [str(name)[:MAX_SHOWN_CHARS] for name in islice(row, MAX_SHOWN_COLUMNS)]
    return f"its first row has the columns {', '.join(names)}{', ...' if len(row) > len(names) else ''}"
