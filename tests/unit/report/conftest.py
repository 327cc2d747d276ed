"""Findings made up on the spot, and a console that keeps what is drawn."""

import dataclasses
import io

import pytest
from rich.console import Console

from trimtab.findings import Blame, Findings, RowShare, Spike
from trimtab.report import terminal

SPIKE = Spike(
    step=9,
    first=9,
    last=9,
    num_steps=1,
    kind="spike",
    signal="loss",
    severity="warning",
    rule="median",
    value=7.842857,
    loss=7.842857,
    baseline=0.955,
    score=None,
    row=17,
    row_share=0.984,
)
ROWS = (
    RowShare(row=17, count=1, loss=9.0, tokens=300, share=0.98361, excess=8.045),
    RowShare(row=16, count=1, loss=0.9, tokens=50, share=0.01639, excess=-0.055),
)


@pytest.fixture
def make_spike():
    return lambda **changes: dataclasses.replace(SPIKE, **changes)


@pytest.fixture
def blame_none():
    """No row is named, for the reason given."""
    return lambda reason, *, step=9: Blame(step=step, rows=(), reason=reason)


@pytest.fixture
def make_row():
    return lambda **changes: dataclasses.replace(ROWS[0], **changes)


@pytest.fixture
def make_findings():
    """The published example: rows 16 and 17 of step 9, 17 being the cause; any field can be given another value."""

    def make(**changes):
        fields = {
            "run_id": "20261129-210313-a1b2c3",
            "source": "runs/a/trimtab/20261129-210313-a1b2c3",
            "rule": "robust",
            "num_steps": 9,
            "step": 9,
            "step_reason": "worst",
            "spikes": (SPIKE,),
            "spikes_left_out": 0,
            "rows": ROWS,
            "rows_left_out": 0,
            "notices": (),
            "blame": Blame(step=9, rows=(17,), reason="share"),
        }
        return Findings(**{**fields, **changes})

    return make


@pytest.fixture
def draw():
    """What `terminal.render` draws, as one text."""

    def drawn(findings, *, width=120, encoding="utf-8", **settings):
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
        console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
        terminal.render(findings, console=console, **settings)
        file.flush()
        return raw.getvalue().decode(encoding)

    return drawn
