"""What the listed rows say, and how repetitive they are, where their data is at hand.

Enters: findings that are complete without it, the log they come from, and data. Leaves: the same findings, with
`preview` and `repetition` of each row, or with the reason why they are withheld. Invariant: nothing else of the
findings depends on the data, and a preview is printable ASCII on one short line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.repetition import GRAM, Repetition, repetition
from trimtab.dataset.data import Data
from trimtab.dataset.lookup import FoundRows, look_up
from trimtab.dataset.row_text import RowText, read_row
from trimtab.findings import Comparison, Findings, RowShare
from trimtab.log.reader import Log
from trimtab.text import plain

PREVIEW_CHARS: Final = 120
"""Longest preview, but for the marks between its parts."""

REPETITIVE: Final = 0.1
"""Repetition from which a preview shows the span that is repeated: in prose the commonest makes up less."""

SEVERAL_DATASETS: Final = "this log holds runs over several datasets, and a row number means another row in each"
HOW_TO_PART: Final = "part them with trimtab convert LOG FOLDER"

_START: Final = 48
_SPAN: Final = 36
_END: Final = 36


def with_previews(findings: Findings, *, log: Log, data: Sequence[Data] | None) -> Findings:
    """The findings with what their rows say.

    Args:
        findings: What `rewind` found in the log.
        log: The log.
        data: Rows at hand, each way of reading them; None: the files that the log names, if they are still there.

    Returns:
        The findings; where the data is not that of the run, or says nothing of it, `preview_withheld` says so.
    """
    if not findings.rows:
        return findings if data is None else dataclasses.replace(findings, preview_withheld=_why_no_rows(findings, log))
    if log.restarts():
        # The header is that of the first run, and a row of the next would get the text of another.
        return dataclasses.replace(findings, preview_withheld=f"{SEVERAL_DATASETS}: {HOW_TO_PART}")
    found = find_rows([row.row for row in findings.rows], log=log, data=data)
    rows = tuple(_told(row, found.rows[row.row]) if row.row in found.rows else row for row in findings.rows)
    read = (f"the rows were read from {found.source}",) if found.source is not None and data is None else ()
    return dataclasses.replace(findings, rows=rows, preview_withheld=found.withheld, notices=(*findings.notices, *read))


def with_all_previews(found: Comparison, *, logs: Sequence[Log], data: Sequence[Data] | None) -> Comparison:
    """Several runs, each with what its rows say; `logs` are parallel to them."""
    runs = tuple(with_previews(run, log=log, data=data) for run, log in zip(found.runs, logs, strict=True))
    return dataclasses.replace(found, runs=runs)


def find_rows(wanted: Sequence[int], *, log: Log, data: Sequence[Data] | None) -> FoundRows:
    """Looks rows of a log up; the arguments as for `with_previews`."""
    return look_up(wanted, header=log.header, digests=lambda: log.id_columns().digests_of(wanted), data=data)


def row_repetition(text: RowText) -> Repetition:
    """How repetitive a row is: over its token ids where it has any, else over the bytes of its text."""
    return repetition(text.numbers)


def preview(text: RowText, *, repeated: Repetition) -> str:
    """One line: a short row whole, of a longer one its start, the span that it repeats, if it does, and its end.

    Args:
        text: The row.
        repeated: What `row_repetition` says of it.
    """
    if text.is_ids:
        return _preview_of_ids(text.numbers, repeated)
    # Escapes are what a preview is made of: 30 characters of Chinese take 180.
    if len(text.main) <= PREVIEW_CHARS and len(whole := plain(text.main)) <= PREVIEW_CHARS:
        return whole
    data = text.main.encode("utf-8", "surrogatepass")
    if text.numbers.size != len(data) or text.numbers.dtype != np.uint8:
        repeated = repetition(np.frombuffer(data, np.uint8))  # that one is of token ids beside the text
    span = data[repeated.first : repeated.first + 4 * _SPAN].decode("utf-8", "ignore")
    end = _cut(text.main[: -_END - 1 : -1], _END, backwards=True)
    return _joined(_cut(text.main, _START), repeated, _cut(span, _SPAN), end)


def _why_no_rows(findings: Findings, log: Log) -> str:
    """Why data that was given has no use."""
    if not log.has_rows:
        return "this log holds no rows, only steps"
    if findings.step is None:
        return "no step is out of line, so none is listed; --step N lists the rows of one"
    return f"no rows of step {findings.step} were recorded"


def _told(row: RowShare, content: object) -> RowShare:
    text = read_row(content)
    repeated = row_repetition(text)
    return dataclasses.replace(row, preview=preview(text, repeated=repeated), repetition=repeated.score)


def _preview_of_ids(ids: NDArray[np.integer], repeated: Repetition) -> str:
    if ids.size <= 3 * GRAM:
        return "token ids " + _spelled(ids)
    span = _spelled(ids[repeated.first : repeated.first + GRAM])
    return "token ids " + _joined(_spelled(ids[:GRAM]), repeated, span, _spelled(ids[-GRAM:]))


def _joined(start: str, repeated: Repetition, span: str, end: str) -> str:
    middle = f" ... ({repeated.num_times} x) {span}" if repeated.score >= REPETITIVE else ""
    return f"{start}{middle} ... {end}"


def _spelled(ids: Iterable[int]) -> str:
    return " ".join(str(int(number)) for number in ids)


def _cut(text: str, limit: int, *, backwards: bool = False) -> str:
    """As many characters as are plain in `limit`, whole escapes; of a reversed text from its end."""
    parts: list[str] = []
    for char in text[:limit]:
        escaped = plain(char)
        limit -= len(escaped)
        if limit < 0:
            break
        parts.append(escaped)
    return "".join(reversed(parts) if backwards else parts)
