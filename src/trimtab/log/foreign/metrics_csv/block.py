"""Lines of a CSV file, under one header, become columns.

    lines -> `read_columns`, all at once: every cell is a plain finite number      -> Block
          -> `read_lines`, one by one: whatever else, what is no record is counted -> Block

Enters: whole lines. Leaves: a `Block`. Invariant: where both ways read a line they give the same.

Shapes: N records of a block.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.foreign.metrics_csv.header import Header, read_header, split_line
from trimtab.log.foreign.steps.beside import BESIDE_ROLES
from trimtab.log.foreign.steps.cells import INT64, NoNumber, as_step, read_number
from trimtab.log.foreign.steps.metric_names import Role

_VALUES: Final[tuple[Role, ...]] = ("loss", "grad_norm", "lr", "loss_scale", "num_tokens", "epoch", *BESIDE_ROLES)
_EXACT: Final = 2.0**53
"""Up to here every whole number is a float64."""

_PLAIN: Final = np.zeros(256, np.bool_)
"""Bytes of which a block of plain numbers is made; the separators are told apart before."""
_PLAIN[list(b"0123456789+-.eE,;\t\n")] = True


NumberedHeader = tuple[int, Header] | None
"""A header with the number of its line, where there is one."""


class Column(NamedTuple):
    """The cells of one column.

    Attributes:
        value: (N,) float64; NaN where the cell is empty or says NaN.
        given: (N,) bool, tells the two apart.
    """

    value: NDArray[np.float64]
    given: NDArray[np.bool_]


class Block(NamedTuple):
    """Records of some lines.

    Attributes:
        place: (N,) int64 number of each line.
        step: (N,) int64.
        values: The other columns that have a role; each (N,).
        evaluations: Losses on data that was not trained on, by the place of their column; each (N,).
    """

    place: NDArray[np.int64]
    step: NDArray[np.int64]
    values: dict[Role, Column]
    evaluations: dict[int, Column]


def read_columns(data: bytes, *, header: Header, first_line: int) -> Block | None:
    """Reads lines at once; None where a cell is not a plain finite number, or a line has more or fewer of them.

    Args:
        data: Whole lines, at least one, that end in a bare line feed.
        header: The header above them.
        first_line: Number of the first of them.
    """
    num_cells = len(header.names)
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((characters == ord(header.separator)) | (characters == ord("\n")))
    if ends.size % num_cells or not _PLAIN[characters].all():
        return None
    is_line_end = (characters[ends] == ord("\n")).reshape(-1, num_cells)
    if not is_line_end[:, -1].all() or is_line_end[:, :-1].any():
        return None
    # What is left to stumble over is a cell such as "1e", or none: an error, in older versions a warning and an end.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            read = np.fromstring(data.replace(b"\n", header.separator.encode()), np.float64, sep=header.separator)
        except ValueError:
            return None
    if read.size != ends.size:
        return None
    columns = np.ascontiguousarray(read.reshape(-1, num_cells).T)
    place = np.arange(first_line, first_line + columns.shape[1], dtype=np.int64)
    at = header.columns.get("step")
    if at is not None and np.any((np.abs(columns[at]) >= _EXACT) | (columns[at] != np.floor(columns[at]))):
        return None
    given = np.ones(place.size, np.bool_)
    return Block(
        place=place,
        step=place if at is None else columns[at].astype(np.int64),
        values={role: Column(columns[header.columns[role]], given) for role in _VALUES if role in header.columns},
        evaluations={place: Column(columns[place], given) for place in header.evaluations},
    )


def read_lines(
    lines: Iterator[tuple[int, str]], *, header: Header, left_out: LeftOut, unread: LeftOut
) -> tuple[Block, NumberedHeader]:
    """Reads lines one by one, as far as the next header with other columns.

    A line is no record where its step or its loss is no number. Another cell that is none costs itself alone, and so
    does one that a short line lacks.

    Args:
        lines: Numbers and lines, these without their ends.
        header: The header above them.
        left_out: Counts the lines that are no records.
        unread: Counts the records of which a cell was not read.

    Returns:
        The records, and the header that ended them; None in its place at the end of the lines.
    """
    places: list[int] = []
    steps: list[int] = []
    read: list[list[float | None]] = []
    roles = [role for role in _VALUES if role in header.columns]
    wanted = [*(header.columns[role] for role in roles), *header.evaluations]
    num_cells, next_header = len(header.names), None
    for number, line in lines:
        if not line.strip():
            continue
        cells = [cell.strip() for cell in split_line(line, header.separator)]
        num_missing = num_cells - len(cells)
        cells += [""] * num_missing
        numbers = [read_number(cells[place]) for place in wanted] if num_missing >= 0 else []
        step = _step_of(cells, header=header, number=number) if numbers else None
        # As nearly every line is.
        is_whole = step is not None and not num_missing and NoNumber not in map(type, numbers)
        why = "" if is_whole else _why_left_out(numbers, roles, step=step, num_missing=num_missing, num_cells=num_cells)
        if step is None or why:
            again = read_header(line)
            if again is not None and again.names != header.names:
                next_header = again
                break
            left_out.add(number, "identical to the header" if again else why)
            continue
        if not is_whole:
            unread.add(number, _what_is_unread(numbers, roles, header=header, num_missing=num_missing))
        places.append(number)
        steps.append(step)
        read.append([None if isinstance(value, NoNumber) else value for value in numbers])
    columns = [_column(values) for values in zip(*read, strict=True)] if read else [_column(())] * len(wanted)
    block = Block(
        place=np.array(places, np.int64),
        step=np.array(steps, np.int64),
        values=dict(zip(roles, columns, strict=False)),
        evaluations=dict(zip(header.evaluations, columns[len(roles) :], strict=True)),
    )
    return block, None if next_header is None else (number, next_header)


def _column(values: Sequence[float | None]) -> Column:
    value = np.array([np.nan if value is None else value for value in values], np.float64)
    return Column(value, np.array([value is not None for value in values], np.bool_))


def _step_of(cells: Sequence[str], *, header: Header, number: int) -> int | None:
    at = header.columns.get("step")
    if at is None:
        return number
    cell = cells[at]
    if cell.lstrip("+-").isdecimal() and cell.isascii():
        # Through a float only what is spelled as one: large whole numbers would be rounded.
        return int(cell) if len(cell) <= 20 and int(cell) in INT64 else None
    value = read_number(cell)
    return None if isinstance(value, NoNumber) else as_step(value)


def _why_left_out(
    numbers: Sequence[float | NoNumber | None],
    roles: Sequence[Role],
    *,
    step: int | None,
    num_missing: int,
    num_cells: int,
) -> str:
    """Why a line is no record, as words that follow the noun; "" where it is one all the same."""
    if not numbers:
        return f"with more than {num_cells} cells"
    of_role = dict(zip(roles, numbers, strict=False))
    if step is not None and isinstance(of_role.get("loss"), NoNumber):
        return "with a loss that is no number"
    of_step = (of_role.get("loss"), of_role.get("grad_norm"), *map(of_role.get, BESIDE_ROLES), *numbers[len(roles) :])
    if step is not None and any(isinstance(value, float) for value in of_step):
        return ""
    if num_missing:
        return f"with fewer than {num_cells} cells"
    return "without a whole number as step" if step is None else "with a cell that is no number"


def _what_is_unread(
    numbers: Sequence[float | NoNumber | None], roles: Sequence[Role], *, header: Header, num_missing: int
) -> str:
    """What a record lacks, as words that follow the noun."""
    if num_missing:
        return f"with fewer than {len(header.names)} cells"
    bad = next(place for place, value in enumerate(numbers) if isinstance(value, NoNumber))
    # Evaluations may be many, and a notice for each of them too.
    return f"with no number under {header.roles.names[roles[bad]]!r}" if bad < len(roles) else "with a bad evaluation"
