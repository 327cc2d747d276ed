"""The benchmarks run, small: a script that nobody runs rots, and RESULTS.md with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SMALL = {
    "checkpoint": ["--megabytes", "20", "--folders", "10", "--repeats", "1"],
    "command_line": ["--repeats", "1"],
    "gpu": ["--tiny", "--pairs", "2", "--steps", "1", "--modes", "eager"],
    "guard": ["--rounds", "2", "--width", "16"],
    "journal": ["--micros", "1024", "--repeats", "2"],
    "overhead": ["--pairs", "2", "--seconds", "0.01", "--vocabularies", "50", "--guard"],
    "read": ["--sizes", "300", "--repeats", "1"],
    "resume": ["--rows", "2000", "--compared-rows", "1000", "--repeats", "1"],
    "router": ["--pairs", "2", "--steps", "2"],
}


def test_every_benchmark_has_its_small_run():
    assert sorted(path.stem for path in BENCHMARKS.glob("*.py")) == sorted(SMALL)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_and_writes_its_figures(name, tmp_path):
    # given
    figures = tmp_path / "figures.json"
    command = [sys.executable, BENCHMARKS / f"{name}.py", *SMALL[name], "--json", figures]

    # when
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    # then
    assert run.returncode == 0, run.stderr
    assert run.stdout
    assert json.loads(figures.read_text())
