"""The examples do what their first lines say: each runs by itself, offline, on the CPU, and within a minute."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 80


@pytest.fixture(scope="module")
def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def run_program(*command: str | Path, folder: Path, home: Path) -> str:
    environment = {**os.environ, "TRIMTAB_HOME": str(home), "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_example_fits_on_a_page(examples: list[Path]) -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in examples}
    assert {name: length for name, length in lengths.items() if length >= MAX_LINES} == {}


@pytest.mark.long
def test_the_document_planted_among_packed_ones_is_the_first_row_that_rewind_names(
    tmp_path: Path, trimtab_home: Path
) -> None:
    # when
    said = run_program(sys.executable, ROOT / "examples" / "trl_packing.py", folder=tmp_path, home=trimtab_home)
    trimtab = Path(sys.executable).with_name("trimtab")
    run_program(trimtab, "rewind", "--json", "r.json", folder=tmp_path, home=trimtab_home)
    # then
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["source"] in said
    assert f"Document {report['rows'][0]['row']} was planted" in said
    assert report["spikes"][0]["kind"] == "spike"
    assert report["rows"][0]["share"] > 0.9
    # and it shared its sequence
    assert len(report["rows"]) > 1
