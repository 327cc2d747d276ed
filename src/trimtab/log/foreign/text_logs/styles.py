r"""Styles in which trainers print their steps, and which of them a file is in.

    Megatron-LM      ` iteration      100/  500000 | ... | lm loss: 7.5E+00 | ...` (`megatron`)
    nanoGPT          `iter 10: loss 10.9886, time 12.67ms, mfu -100.00%`
    modded-nanogpt   `step:100/1750 train_loss:4.5023 train_time:12345ms step_avg:123.45ms`
    llm.c            `step    1/19560 | loss 11.009 (+nanz)| norm 15.34 (+nanz)| lr 8.57e-07 | ...`
    llm.c, main.log  `s:100 trl:6.5023 lr:0.000086 norm:1.53`
    Transformers     `{'loss': 0.2051, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}` (`transformers`)

Enters: lines. Leaves: the style of the first that has one. Invariant: a new style is a line in `STYLES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trimtab.log.foreign.text_logs.megatron import MEGATRON
from trimtab.log.foreign.text_logs.patterns import (
    BEFORE,
    BEHIND,
    COUNT,
    Style,
    fixed_evaluation,
    fixed_layout,
    further_on,
    group,
)
from trimtab.log.foreign.text_logs.transformers import TRANSFORMERS

_STEP: Final = group("step", COUNT)
_LOSS: Final = group("loss")
_VAL_LOSS: Final = group("val_loss")
_REST: Final = further_on("grad_norm", called=rb"(?:grad[_ ])?norm") + further_on(
    "lr", called=rb"(?:lr|learning[_ ]rate)"
)

STYLES: Final = (
    MEGATRON,
    Style(
        backend="nanogpt",
        mark=b"iter ",
        layout=fixed_layout(BEFORE, rb"iter ", _STEP, rb": loss ", _LOSS, BEHIND, _REST),
        evaluation_mark=b"val loss ",
        read_evaluation=fixed_evaluation(
            BEFORE,
            rb"step ",
            _STEP,
            rb": train loss ",
            group("train_loss"),
            rb", val loss ",
            _VAL_LOSS,
            rb"(?:\Z|",
            BEHIND,
            rb")",
        ),
    ),
    Style(
        backend="modded-nanogpt",
        mark=b"train_loss:",
        layout=fixed_layout(BEFORE, rb"step:", _STEP, rb"(?:/\d{1,18})? train_loss:", _LOSS, rb"(?=\s|\Z)", _REST),
        evaluation_mark=b"val_loss:",
        read_evaluation=fixed_evaluation(
            BEFORE, rb"step:", _STEP, rb"(?:/\d{1,18})? val_loss:", _VAL_LOSS, rb"(?=\s|\Z)"
        ),
    ),
    Style(
        backend="llm.c",
        mark=b" loss ",
        layout=fixed_layout(
            BEFORE, rb"step {1,20}", _STEP, rb"/\d{1,18} \| (?:train )?loss ", _LOSS, rb"(?=[\s|(])", _REST
        ),
        evaluation_mark=b"val loss ",
        read_evaluation=fixed_evaluation(rb"\A\s{0,20}val loss ", _VAL_LOSS, rb"\s{0,20}\Z"),
    ),
    Style(
        backend="llm.c",
        mark=b" trl:",
        layout=fixed_layout(rb"\As:", _STEP, rb" trl:", _LOSS, rb"(?=\s|\Z)", _REST),
        evaluation_mark=b" tel:",
        read_evaluation=fixed_evaluation(rb"\As:", _STEP, rb" tel:", _VAL_LOSS, rb"(?=\s|\Z)"),
    ),
    TRANSFORMERS,
)

_COLOURS: Final = re.compile(rb"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]")


def style_of(lines: Iterable[bytes]) -> Style | None:
    """The style of the first line that is one of a step, or of an evaluation; None where there is none."""
    first_evaluation = None
    for line in lines:
        for style in STYLES:
            if style.is_step(line):
                return style
            if first_evaluation is None and style.evaluation(line) is not None:
                first_evaluation = style
    return first_evaluation


def printed_lines(data: bytes) -> list[bytes]:
    """Lines as a terminal would show them: without colours; what a progress bar wrote over stands in its line."""
    return (_COLOURS.sub(b"", data) if b"\x1b" in data else data).split(b"\n")
