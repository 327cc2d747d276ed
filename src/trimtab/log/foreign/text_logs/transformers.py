"""Lines that the trainer of Transformers prints: flat dictionaries in Python's spelling, without a step.

    {'loss': 0.2051, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}

Enters: a line. Leaves: the pattern of lines like it. Invariant: nothing is evaluated; a dictionary is taken whole, with
texts and numbers for values, or not at all. Newer versions print their numbers as texts.
"""

from __future__ import annotations

import re
from typing import Final

from trimtab.log.foreign.steps.metric_names import is_eval_loss, roles_of
from trimtab.log.foreign.text_logs.patterns import FIELDS, NUMBER, Evaluation, Style, group

_KEY: Final = rb"'[^'\\\n]{1,200}'"
_VALUE: Final = rb"(?:'[^'\\\n]{0,200}'|%s|True|False|None)" % NUMBER
_FLAT: Final = re.compile(rb"(?<!': )\{%s: %s(?:, %s: %s){0,99}\}" % (_KEY, _VALUE, _KEY, _VALUE))
_PAIR: Final = re.compile(rb"'([^'\\\n]{1,200})': (%s)" % _VALUE)
_MAYBE_QUOTED: Final = re.compile(rb"'?(%s)'?" % NUMBER)


def _layout(line: bytes) -> re.Pattern[bytes] | None:
    pairs = _pairs(line)
    numbers = [key for key, value in pairs if _MAYBE_QUOTED.fullmatch(value)]
    # The summary of a run that is over is no step.
    if b"loss" not in numbers or b"train_runtime" in numbers:
        return None
    roles = roles_of(dict.fromkeys(key.decode("latin-1") for key in numbers))
    role_of = {name.encode("latin-1"): str(role) for role, name in roles.names.items()}
    parts = []
    for key, _ in pairs:
        role = role_of.pop(key, "")
        value = rb"'?%s'?" % group(role) if role in FIELDS and role != "step" else _VALUE
        parts.append(rb"'%s': %s" % (re.escape(key), value))
    return re.compile(rb"\{%s\}" % rb", ".join(parts))


def _read_evaluation(line: bytes) -> Evaluation | None:
    found = ((key.decode("latin-1"), _MAYBE_QUOTED.fullmatch(value)) for key, value in _pairs(line))
    losses = {name: float(number[1]) for name, number in found if number is not None and is_eval_loss(name)}
    return Evaluation(None, losses) if losses else None


def _pairs(line: bytes) -> list[tuple[bytes, bytes]]:
    whole = _FLAT.search(line)
    return [] if whole is None else _PAIR.findall(whole[0])


TRANSFORMERS: Final = Style(
    backend="transformers",
    mark=b"'loss': ",
    layout=_layout,
    evaluation_mark=b"'eval_",
    read_evaluation=_read_evaluation,
    has_steps=False,
)
