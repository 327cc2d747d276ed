"""What the demo refuses before it begins, and how a demo is judged."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from pathlib import Path

import pytest

from trimtab.demo.console import Console
from trimtab.demo.main import run_demo
from trimtab.demo.named import Check
from trimtab.demo.plant import Kind, Plant
from trimtab.demo.result import DemoResult
from trimtab.demo.run_log import Skip
from trimtab.errors import MissingExtraError
from trimtab.findings import Findings

FINDINGS = Findings(
    run_id="run-1",
    source="somewhere",
    rule="robust",
    num_steps=360,
    step=None,
    step_reason=None,
    spikes=(),
    spikes_left_out=0,
    rows=(),
    rows_left_out=0,
    notices=(),
)


def result(*, first_row: int | None = 17, kind: Kind = "garbage", dead_since: int | None = None) -> DemoResult:
    return DemoResult(
        out=Path("out"),
        run_id="run-1",
        run_folder=Path("out/trimtab/run-1"),
        seed=0,
        guarded=True,
        dead_since=dead_since,
        nonfinite_parameters=(),
        skips=(Skip(150, 1, "spike"),),
        checks=(Check(plant=Plant(150, 1, 17, kind), finding="spike", first_row=first_row, loss=math.nan, share=0.9),),
        findings=FINDINGS,
    )


@pytest.mark.parametrize("missing", ["torch", "transformers", "accelerate", "tokenizers"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    stream = io.StringIO()

    with pytest.raises(MissingExtraError, match=rf"{missing} is not installed.*pip install 'trimtab\[demo\]'"):
        run_demo(tmp_path / "out", seed=0, guard=True, console=Console(stream))

    assert list(tmp_path.iterdir()) == []
    assert stream.getvalue() == ""


def test_a_demo_passes_if_what_the_loss_can_show_was_named_first() -> None:
    assert result().passed
    assert not result(first_row=3).passed
    assert result(first_row=3, kind="repeated").passed


def test_a_run_that_ended_in_non_finite_losses_did_not_survive() -> None:
    assert result().survived
    assert not result(dead_since=200).survived
    assert result(dead_since=200).complaints == [
        "the guard was on, and the run died at step 200; its log is out/trimtab/run-1"
    ]


def test_a_run_without_a_guard_is_to_die() -> None:
    assert dataclasses.replace(result(dead_since=200), guarded=False).passed
    assert not dataclasses.replace(result(), guarded=False).passed


def test_the_document_is_strict_json() -> None:
    document = json.loads(json.dumps(result().to_dict(), allow_nan=False))

    assert document["version"] == 1
    assert document["planted"][0]["loss"] == "nan"
    assert document["skipped"] == [{"step": 150, "micro": 1, "reason": "spike"}]
    assert document["report"] == FINDINGS.to_dict()
