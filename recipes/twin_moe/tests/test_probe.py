"""`--probe` measures a shape, and leaves nothing behind."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes.twin_moe.probe import probe
from recipes.twin_moe.tests.small_twin import small

ROOT = Path(__file__).parents[3]


def listing(*folders):
    return sorted((str(path), path.stat().st_mtime_ns) for folder in folders for path in [folder, *folder.rglob("*")])


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where a trace would be: the current folder, the user's home and the list of runs."""
    folders = {name: tmp_path / name for name in ("here", "home", "registry", "data")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["here"])
    for name, folder in {"HOME": "home", "TRIMTAB_HOME": "registry", "XDG_DATA_HOME": "data"}.items():
        monkeypatch.setenv(name, str(folders[folder]))
    return folders.values()


def test_a_probe_tells_tokens_a_second_and_peak_memory_and_leaves_no_trace(places):
    # given
    before = listing(*places)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    # when
    lines = []
    found = probe(small(), tell=lines.append)
    # then
    assert listing(*places) == before
    assert torch.equal(torch.rand(3), expected)
    assert found.tokens_per_s == pytest.approx(2 * 2 * 32 / found.step_s)
    assert found.num_steps == 10
    assert 50e6 < found.before_bytes <= found.peak_bytes < 20e9
    assert found.total_bytes is None
    shape, speed, memory = lines
    assert "2 layers of 8 experts; 2 micro-batches of 2 x 32 tokens a step" in shape
    assert f"{found.tokens_per_s:,.0f} tokens a second" in speed
    assert f"peak memory {found.peak_bytes / 1e6:,.0f} MB" in memory


def test_a_shape_that_is_too_slow_is_known_by_one_step(monkeypatch):
    # given: a clock on which every look is a minute later
    looks = iter(range(0, 10_000, 60))
    monkeypatch.setattr("recipes.twin_moe.probe.time.perf_counter", lambda: float(next(looks)))
    # when
    found = probe(replace(small(), accumulation=1), tell=lambda line: None)
    # then
    assert (found.num_steps, found.step_s) == (1, 60.0)


@pytest.mark.long
def test_the_flag_probes_a_preset_and_leaves_no_trace(places):
    before = listing(*places)
    done = subprocess.run(
        [sys.executable, "-m", "recipes.twin_moe.train", "--preset", "tiny", "--probe", "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "tokens a second" in done.stdout
    assert "peak memory " in done.stdout
    assert listing(*places) == before
