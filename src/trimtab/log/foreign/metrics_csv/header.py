"""The header line of a metric file in CSV: its separator, and which column is what.

Enters: a line. Leaves: a `Header`, or None where the line is none. Invariant: a line of numbers is no header, and a
header without a training loss or a gradient norm is not a metric file's.
"""

from __future__ import annotations

import csv
import functools
from collections import Counter
from dataclasses import dataclass
from typing import Final

from trimtab.log.foreign.steps.cells import NoNumber, read_number
from trimtab.log.foreign.steps.metric_names import NAMES, Role, Roles, normalised, roles_of

SEPARATORS: Final = (",", ";", "\t")

_BYTE_ORDER_MARK: Final = "\ufeff"
"""Stands also further down, where files were put together."""

MAX_COLUMNS: Final = 10_000

MAX_DOUBLES: Final = 3
"""Columns of one name that notices tell."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header line says.

    Attributes:
        separator: The character between cells.
        names: The columns, from the left.
        roles: What they are.
        columns: The place of the column of each role that there is.
        evaluations: Places of columns with a loss on data that was not trained on.
        doubles: Names of columns with a role that stand more than once: the first of them is read.
    """

    separator: str
    names: tuple[str, ...]
    roles: Roles
    columns: dict[Role, int]
    evaluations: tuple[int, ...]
    doubles: tuple[str, ...]

    def notices(self) -> list[str]:
        """What to say of the columns that were chosen."""
        more = [f"{len(self.doubles)} columns stand twice"] if len(self.doubles) > MAX_DOUBLES else []
        said = [f"the column {name!r} stands twice: the first was read" for name in self.doubles[:MAX_DOUBLES]]
        return [*self.roles.notices(), *more, *said]


@functools.lru_cache(maxsize=256)
def read_header(line: str) -> Header | None:
    """Reads a line as a header; None where it is none.

    Args:
        line: The line, with or without its end. A leading byte order mark and "#" do not count.
    """
    # One of these is in every name that makes a header; most lines that are none hold neither.
    if "loss" not in line.lower() and "norm" not in line.lower():
        return None
    text = line.removeprefix(_BYTE_ORDER_MARK).strip("\r\n").removeprefix("#").strip(" ")
    for separator in SEPARATORS:
        names = tuple(cell.strip() for cell in split_line(text, separator))
        if not 0 < len(names) <= MAX_COLUMNS or any(
            not isinstance(read_number(name), NoNumber | None) for name in names
        ):
            continue
        roles = roles_of(dict.fromkeys(name for name in names if name))
        if _is_metric_file(roles):
            counts, of_use = Counter(names), dict.fromkeys((*roles.names.values(), *roles.eval_losses))
            return Header(
                separator=separator,
                names=names,
                roles=roles,
                columns={role: names.index(name) for role, name in roles.names.items()},
                evaluations=tuple(names.index(name) for name in roles.eval_losses),
                doubles=tuple(name for name in of_use if counts[name] > 1),
            )
    return None


def _is_metric_file(roles: Roles) -> bool:
    """Whether a step has a value among the names; a name that only ends in "loss" may be prose, if no step is there."""
    if "step" in roles.names or "epoch" in roles.names:
        return "loss" in roles.names or "grad_norm" in roles.names
    return any(normalised(roles.names.get(role, "")) in NAMES[role] for role in ("loss", "grad_norm"))


def split_line(line: str, separator: str) -> list[str]:
    """The cells of one line, or of several that a quoted cell joins."""
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        # A cell longer than the module takes, or a NUL in a quoted one.
        return []
