"""Lines of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX: cells between bars.

     iteration      100/  500000 | consumed samples: 25600 | ... | lm loss: 7.5E+00 | grad norm: 1.309 | ...

Enters: a line. Leaves: the pattern of lines like it. Invariant: cells differ from version to version, so what a cell is
called tells what it is; a cell without a bar behind it is torn.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trimtab.log.foreign.steps.metric_names import ROLES, Roles, rank_of, roles_of
from trimtab.log.foreign.text_logs.patterns import COUNT, FIELDS, NUMBER, Style, fixed_evaluation, group

MAX_CELLS: Final = 100

_ITERATION: Final = re.compile(rb"\biteration:?\s{1,40}\d{1,18}\s{0,40}/\s{0,40}\d{1,18}\s{0,40}\|")
_CELL: Final = re.compile(rb"\s*([^:|]{1,80}?)(?::\s*|\s+)" + NUMBER + rb"\s*\Z")
_LABEL: Final = re.compile(rb"\s*([^:|]{1,80}?)\s*:")
_NOTHING: Final = (b"", b"")
_COUNTERS: Final = {b"number of skipped iterations": "num_skipped", b"number of nan iterations": "num_nan"}


class _Cell(NamedTuple):
    """What a cell of a line is called, and whether it holds a number."""

    name: bytes
    has_number: bool


def _layout(line: bytes) -> re.Pattern[bytes] | None:
    cells = _cells(line)
    role_of = {name.encode("latin-1"): str(role) for role, name in _roles(cells).names.items()} | _COUNTERS
    parts, num_passed, is_step = [], 0, False
    for name, has_number in cells:
        role = role_of.pop(name, "") if has_number else ""
        if role in FIELDS and role != "step":
            number = group(role, COUNT) if name in _COUNTERS else group(role)
            parts += [rb"[^|]*\|" * num_passed, rb"\s*%s:?\s*" % re.escape(name), number, rb"\s*\|"]
            num_passed, is_step = 0, True
        elif not has_number and _has_role(name):
            # A line that holds a number there is of another layout.
            parts += [rb"[^|]*\|" * num_passed, rb"(?!\s*%s:?\s*%s\s*\|)[^|]*\|" % (re.escape(name), NUMBER)]
            num_passed = 0
        else:
            num_passed += 1
    if not is_step:
        return None
    # Exactly so many cells: a line with more of them measured more, and is of another layout.
    parts += [rb"[^|]*\|" * num_passed, rb"(?![^|]*\|)"]
    return re.compile(b"".join((rb"\biteration:?\s{1,40}", group("step", COUNT), rb"\s{0,40}/[^|]{0,80}\|", *parts)))


def _on_choice(line: bytes) -> list[str]:
    cells = _cells(line)
    bad = [cell.name.decode("latin-1") for cell in cells if not cell.has_number and _has_role(cell.name)]
    return [*_roles(cells).notices(), *(f"some lines hold no number under {name!r}: read without it" for name in bad)]


def _cells(line: bytes) -> list[_Cell]:
    """The cells of a line of a step; none of any other line."""
    begin = _ITERATION.search(line)
    cells = []
    for text in [] if begin is None else line[begin.end() :].split(b"|", MAX_CELLS)[:-1]:
        number, label = _CELL.match(text), _LABEL.match(text)
        cells.append(_Cell((number or label or _NOTHING)[1], number is not None))
    return cells


def _roles(cells: list[_Cell]) -> Roles:
    return roles_of(dict.fromkeys(cell.name.decode("latin-1") for cell in cells if cell.has_number))


def _has_role(name: bytes) -> bool:
    return any(rank_of(name.decode("latin-1"), role) is not None for role in ROLES if role in FIELDS)


MEGATRON: Final = Style(
    backend="megatron",
    mark=b"iteration",
    layout=_layout,
    on_choice=_on_choice,
    evaluation_mark=b"loss value:",
    read_evaluation=fixed_evaluation(
        rb"\b(?:validation|test) (?:loss|results) at (?:iteration ",
        group("step", COUNT),
        rb")?[^|]{0,200}\|\s*lm[_ ]loss value: ",
        group("validation_loss"),
        rb"\s*\|",
    ),
)
