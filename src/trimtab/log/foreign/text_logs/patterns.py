"""What the styles of text logs are made of: numbers, groups, and the pattern of a line of a step.

Enters: pieces of patterns. Leaves: patterns whose groups are named as in `FIELDS`. Invariant: a line is one of a step
only where its loss is followed by what the trainer prints behind it; every repetition is bounded, so that a line made
to be slow is not. Standard library only: a file is asked for its style before anything else is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from trimtab.log.foreign.steps.metric_names import is_eval_loss

FIELDS: Final = ("step", "loss", "grad_norm", "lr", "loss_scale", "num_skipped", "num_nan")
"""Groups that the pattern of a step may have; one that the line does not hold matches nothing."""

NUMBER: Final = rb"[-+]?(?:(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,5})?|(?i:nan|infinity|inf))"
COUNT: Final = rb"\d{1,18}"
BEHIND: Final = rb"(?=,(?!\d)|\s)"
"""Behind a number that a comma may follow; in front of digits it is a decimal comma, and the number another one."""
BEFORE: Final = rb"(?<![\w./])"
"""In front of the word with which a style's lines begin; a time stamp or a rank may stand before it."""


class Evaluation(NamedTuple):
    """What a line of an evaluation says.

    Attributes:
        step: None where it does not say; then it belongs to the step before it.
        losses: By name, at least one; first the one that counts.
    """

    step: int | None
    losses: dict[str, float]


class Style(NamedTuple):
    """How one trainer prints.

    Attributes:
        backend: What trains.
        mark: Every line of a step holds it.
        layout: The pattern of a line of a step, also of those like it; None if this is none.
        evaluation_mark: Every line of an evaluation holds it.
        read_evaluation: What such a line says; None if it is none.
        has_steps: Whether lines of steps say their step; else they are counted.
        on_choice: What to say of what was read as the loss in a line of a step, and in those like it.
    """

    backend: str
    mark: bytes
    layout: Callable[[bytes], re.Pattern[bytes] | None]
    evaluation_mark: bytes
    read_evaluation: Callable[[bytes], Evaluation | None]
    has_steps: bool = True
    on_choice: Callable[[bytes], list[str]] = lambda _: []

    def is_step(self, line: bytes) -> bool:
        """Whether a line is one of a step."""
        return self.mark in line and self.layout(line) is not None

    def evaluation(self, line: bytes) -> Evaluation | None:
        """What a line of an evaluation says; None if it is none."""
        return self.read_evaluation(line) if self.evaluation_mark in line else None


def group(name: str, what: bytes = NUMBER) -> bytes:
    """A named group, of a number unless said otherwise."""
    return rb"(?P<%s>%s)" % (name.encode(), what)


def further_on(name: str, *, called: bytes) -> bytes:
    """A number that may stand further on in the line, behind what it is called."""
    return rb"(?:(?=.*?\b%s:? ?%s(?![\w.]|,\d)))?" % (called, group(name))


def fixed_layout(*parts: bytes) -> Callable[[bytes], re.Pattern[bytes] | None]:
    """The layout of a style whose lines are all alike."""
    pattern = re.compile(b"".join(parts))
    return lambda line: pattern if pattern.search(line) else None


def fixed_evaluation(*parts: bytes) -> Callable[[bytes], Evaluation | None]:
    """Reads an evaluation by a pattern: `step` is its step, other groups are named after what was measured."""
    pattern = re.compile(b"".join(parts))

    def read(line: bytes) -> Evaluation | None:
        match = pattern.search(line)
        if match is None:
            return None
        found = match.groupdict()
        step = found.pop("step", None)
        # First what was measured on data that was not trained on.
        names = sorted(found, key=lambda name: not is_eval_loss(name))
        return Evaluation(None if step is None else int(step), {name: float(found[name]) for name in names})

    return read
