"""Lines of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX: cells between bars.

     iteration      100/  500000 | consumed samples: 25600 | ... | lm loss: 7.5E+00 | grad norm: 1.309 | ...

Enters: a line. Leaves: the pattern of lines like it. Invariant: cells differ from version to version, so what a cell is
called tells what it is; a cell without a bar behind it is torn.
"""

from __future__ import annotations

import re
from typing import Final

from trimtab.log.foreign.metric_names import roles_of
from trimtab.log.foreign.text_patterns import COUNT, FIELDS, NUMBER, Style, fixed_evaluation, group

MAX_CELLS: Final = 100

_ITERATION: Final = re.compile(rb"\biteration:?\s{1,40}\d{1,18}\s{0,40}/\s{0,40}\d{1,18}\s{0,40}\|")
_CELL: Final = re.compile(rb"\s*([^:|]{1,80}?)(?::\s*|\s+)" + NUMBER + rb"\s*\Z")
_COUNTERS: Final = {b"number of skipped iterations": "num_skipped", b"number of nan iterations": "num_nan"}


def _layout(line: bytes) -> re.Pattern[bytes] | None:
    begin = _ITERATION.search(line)
    if begin is None:
        return None
    cells = line[begin.end() :].split(b"|", MAX_CELLS)[:-1]
    names = [b"" if (cell := _CELL.match(text)) is None else cell[1] for text in cells]
    roles = roles_of(dict.fromkeys(name.decode("latin-1") for name in names if name))
    role_of = {name.encode("latin-1"): str(role) for role, name in roles.names.items()} | _COUNTERS
    parts, num_passed = [], 0
    for name in names:
        role = role_of.pop(name, "")
        if role in FIELDS and role != "step":
            number = group(role, COUNT) if name in _COUNTERS else group(role)
            parts += [rb"[^|]*\|" * num_passed, rb"\s*%s:?\s*" % re.escape(name), number, rb"\s*\|"]
            num_passed = 0
        else:
            num_passed += 1
    if not parts:
        return None
    # Exactly so many cells: a line with more of them measured more, and is of another layout.
    parts += [rb"[^|]*\|" * num_passed, rb"(?![^|]*\|)"]
    return re.compile(b"".join((rb"\biteration:?\s{1,40}", group("step", COUNT), rb"\s{0,40}/[^|]{0,80}\|", *parts)))


MEGATRON: Final = Style(
    backend="megatron",
    mark=b"iteration",
    layout=_layout,
    evaluation_mark=b"loss value:",
    read_evaluation=fixed_evaluation(
        rb"\b(?:validation|test) (?:loss|results) at (?:iteration ",
        group("step", COUNT),
        rb")?[^|]{0,200}\|\s*lm[_ ]loss value: ",
        group("validation_loss"),
        rb"\s*\|",
    ),
)
