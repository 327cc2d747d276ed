"""The verb around the demo: exit codes and the document, for results that a real training gives only by accident."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trimtab.cli.demo
from trimtab.cli import main
from trimtab.demo.named import Check
from trimtab.demo.plant import Plant
from trimtab.demo.result import DemoResult
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


def pretend_that_a_demo_names(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_demo(out: Path, **settings: Any) -> DemoResult:
        settings["console"].line("a story")
        check = Check(plant=Plant(150, 1, 17, "garbage"), finding="spike", first_row=row, loss=13.0, share=0.9)
        return DemoResult(
            out=out,
            run_id="run-1",
            run_folder=out / "trimtab" / "run-1",
            seed=settings["seed"],
            guarded=settings["guard"],
            dead_since=None if settings["guard"] else 150,
            nonfinite_parameters=(),
            skips=(),
            checks=(check,),
            findings=FINDINGS,
        )

    monkeypatch.setattr(trimtab.cli.demo, "run_demo", run_demo)


def test_a_planted_row_that_is_not_named_first_is_exit_1_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_that_a_demo_names(3, monkeypatch)

    done = CliRunner().invoke(main, ["demo"])

    assert done.exit_code == 1
    assert done.stderr == (
        "Error: row 17, planted as garbage at step 150, was to be a finding and named first; rewind has a finding "
        "(spike) there and names row 3 first. Look at the step yourself: trimtab rewind --step 150\n"
    )


def test_with_json_on_standard_output_the_story_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_that_a_demo_names(17, monkeypatch)

    done = CliRunner().invoke(main, ["demo", "--seed", "4", "--no-guard", "--json", "-"])

    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["seed"], document["guarded"], document["passed"]) == (4, False, True)
    assert done.stderr == "a story\n"


def test_the_help_page_has_an_example() -> None:
    done = CliRunner().invoke(main, ["demo", "--help"])

    assert done.exit_code == 0
    assert "trimtab demo --seed 3 --no-guard" in done.stdout
