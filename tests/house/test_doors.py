"""The doors between the rooms: each import contract of pyproject.toml holds, and each can fail.

`lint-imports` runs on a copy of src with one forbidden line added, and must name the contract that was broken.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A contract's id, the room that gets the line, the line.
BREACHES = [
    ("downwards", "log", "import trimtab.run"),
    ("downwards", "guard", "import trimtab.recorder"),
    ("downwards", "conversion", "import trimtab.calibration"),
    ("downwards", "rules", "import trimtab.log"),
    ("downwards", "values", "import trimtab.errors"),
    ("downwards", "text", "import trimtab.findings"),
    ("downwards", "report", "import trimtab.proof.checks"),
    ("downwards", "a_room_without_a_place", ""),
    ("framework-free", "run", "import torch"),
    ("framework-free", "recording", "import transformers"),
    ("framework-free", "recorder", "import trimtab.torch.run"),
    ("framework-free", "conversion", "import torch"),
    ("framework-free", "dataset", "import datasets"),
    ("framework-free", "log", "def late():\n    import transformers"),
    ("offline", "analysis", "import trimtab.recorder"),
    ("offline", "analysis", "import trimtab.recording"),
    ("offline", "conversion", "import trimtab.recorder"),
    ("offline", "report", "import trimtab.torch.run"),
    ("live", "recorder", "import trimtab.report"),
    ("live", "recorder", "import trimtab.conversion"),
    ("live", "recording", "import trimtab.report"),
    ("live", "run", "import trimtab.findings"),
    ("live", "torch", "import trimtab.analysis"),
    ("torch", "cli", "import torch"),
    ("transformers", "torch", "import transformers"),
    ("transformers", "proof", "import transformers"),
    ("transformers", "integrations", "from transformers import Trainer"),
    ("trl", "torch", "import datasets"),
    ("trl", "integrations", "def late():\n    import trl"),
    ("standard-library", "rules", "import numpy as np"),
    ("standard-library", "notices", "import rich"),
    ("standard-library", "findings", "import numpy as np"),
]


def lint_imports(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [command, "--no-cache", "--no-logo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(root, tmp_path):
    shutil.copy(root / "pyproject.toml", tmp_path)
    shutil.copytree(root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_doors_are_kept(copy):
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("contract", "room", "line"), BREACHES)
def test_a_forbidden_import_is_seen(copy, contract, room, line):
    # given: a room is a folder, or a file
    folder = copy / "src" / "trimtab" / room
    with (folder / "breach.py" if folder.is_dir() else folder.with_suffix(".py")).open("a") as source:
        source.write(f"\n{line}\n")
    # when
    result = lint_imports(copy, "--contract", contract)
    # then: broken, and not merely unreadable
    assert result.returncode == 1
    assert "0 kept, 1 broken" in result.stdout


def test_every_contract_is_proven_to_fail(root):
    ids = {
        line.split('"')[1] for line in (root / "pyproject.toml").read_text().splitlines() if line.startswith("id = ")
    }
    assert ids == {contract for contract, _, _ in BREACHES}
