"""One line of a `rewind.jsonl`, typed strictly; for the first, and the few that the fast reader does not take.

Enters: the bytes of a line. Leaves: a header, a batch, or why it is neither. Invariant: a batch that leaves here is
well-formed to the last entry; nothing is rounded or guessed, and nothing cast but a step that is a whole float (31.0).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from trimtab.errors import LogError
from trimtab.log.foreign.line_blocks import BLOCK_BYTES, line_blocks, without_mark
from trimtab.log.foreign.steps.cells import as_step
from trimtab.values import RunHeader, nonfinite_number

VERSION = 1
INT64 = range(-(2**63), 2**63)
INT32 = range(2**31)


class Batch(NamedTuple):
    """One micro-batch: parallel lists, one entry a row."""

    step: int
    micro: int
    rows: list[int]
    losses: list[float]
    """Mean loss of each row; NaN for null."""
    tokens: list[int]


class Unreadable(NamedTuple):
    """Why a line was left out."""

    reason: str


class Header(NamedTuple):
    """A header line's object, whatever it holds."""

    fields: dict[str, Any]


def read_line(line: bytes) -> Header | Batch | Unreadable:
    """Types one line that is not blank."""
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        return Unreadable("not UTF-8")
    except (ValueError, RecursionError):
        return Unreadable("not JSON")
    if not isinstance(record, dict):
        return Unreadable("not an object")
    if record.get("kind") == "header":
        return Header(record)
    if record.get("kind") != "batch":
        return Unreadable("of a kind other than header and batch")
    return _batch(record)


def is_record(line: bytes) -> bool:
    """Whether a line is a header or a micro-batch, at the very beginning of a file too."""
    return isinstance(read_line(without_mark(line)), Header | Batch)


def first_record(path: Path) -> Header | Batch | None:
    """The first line of a file that is a header or a micro-batch; None where there is none near its beginning.

    Raises:
        OSError: The file cannot be read.
    """
    num_searched = 0
    with path.open("rb") as file:
        for lines in line_blocks(file):
            for line in lines.data.split(b"\n"):
                # Every record has a kind, and a look for it costs a hundredth of reading the line.
                record = read_line(line) if b'"kind"' in line else None
                if isinstance(record, Header | Batch):
                    return record
            # A file of another kind is not read to its end; a first line of any length is, up to the bound on lines.
            num_searched += len(lines.data)
            if num_searched >= BLOCK_BYTES:
                break
    return None


def read_header(fields: dict[str, Any], *, path: str) -> RunHeader:
    """Turns a header line into a `RunHeader`; what is not of its type counts as not known.

    Raises:
        LogError: The header is of another version.
    """
    version = fields.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise LogError(
            f"{path}: the header says version {version!r}; this Trimtab reads version {VERSION} of rewind.jsonl. "
            "Read it with the tool that wrote it, or with a newer Trimtab."
        )
    return RunHeader(
        run_id=None,
        backend=_text(fields, "backend") or "unknown",
        task=_text(fields, "task"),
        num_rows=_whole(fields, "n_rows"),
        batch_size=_whole(fields, "batch_size"),
        accumulation=_whole(fields, "grad_accum") or 1,
        dataset_fingerprint=_text(fields, "dataset_fingerprint"),
        created=_time(fields, "created") or 0.0,
    )


def unread_fields(fields: dict[str, Any]) -> list[str]:
    """Fields of a header line that hold something, and nothing that they could mean."""
    known = {"backend": _text, "task": _text, "dataset_fingerprint": _text, "created": _time}
    known |= dict.fromkeys(("n_rows", "batch_size", "grad_accum"), _whole)
    return [name for name, read in known.items() if fields.get(name) is not None and read(fields, name) is None]


def _batch(record: dict[str, Any]) -> Batch | Unreadable:
    step, micro = record.get("step"), record.get("micro")
    # As in any other log: where a table had gaps, its steps are floats.
    step = as_step(step) if isinstance(step, float) else step
    rows, losses, tokens = record.get("rows"), record.get("row_loss"), record.get("row_tokens")
    if not _is_int(step, INT64) or not _is_int(micro, INT32):
        return Unreadable("without a whole number as step and micro")
    if not (isinstance(rows, list) and isinstance(losses, list) and isinstance(tokens, list)):
        return Unreadable("without lists of rows, row_loss and row_tokens")
    if not len(rows) == len(losses) == len(tokens):
        return Unreadable("with lists of different lengths")
    if not all(_is_int(row, INT64) for row in rows) or not all(_is_int(count, INT32) for count in tokens):
        return Unreadable("with a row or a token count that is no whole number in range")
    read = [_loss(loss) for loss in losses]
    if None in read:
        return Unreadable("with a loss that is no number")
    return Batch(step, micro, rows, [loss for loss in read if loss is not None], tokens)


def _loss(loss: object) -> float | None:
    if loss is None:
        return math.nan
    if isinstance(loss, str):
        return nonfinite_number(loss)
    if not isinstance(loss, int | float) or isinstance(loss, bool):
        return None
    try:
        return float(loss)
    except OverflowError:
        return None


def _is_int(value: object, allowed: range) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_int(value, INT64)


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _time(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return float(value) if _is_number(value) and math.isfinite(value) else None


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if _is_int(value, INT64) and value >= 0 else None
