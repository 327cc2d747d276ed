"""The loop of docs/gate.md, pasted, is a training whose chunks pass every gate; the page tells what there is."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from click.testing import CliRunner

from trimtab.cli import main
from trimtab.gates.values import GATE_NAMES, GateStatus

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")

_spec = importlib.util.spec_from_file_location("chunks_of_a_mixture", ROOT / "tests" / "e2e" / "chunks_of_a_mixture.py")
assert _spec is not None
assert _spec.loader is not None
chunks = importlib.util.module_from_spec(_spec)
sys.modules["chunks_of_a_mixture"] = chunks
_spec.loader.exec_module(chunks)


def test_the_loop_of_the_page_passes_every_gate_of_two_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the example, with chunks of 50 steps
    (loop,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {
        "build": chunks.build,
        "routers_of": lambda model: [layer.router for layer in model.layers],
        "losses_of": chunks.losses_of,
        "batch_of": chunks.batch_of,
        "rows_of": lambda step: torch.arange(8) + 8 * step,
        "evaluate": lambda model: chunks.losses_of(model, chunks.batch_of(0)).mean().item(),
        "held_out_ids": chunks.batch_of(0),
    }
    for last_step in (50, 100):
        # when
        exec(loop.replace("done + 201", "done + 51"), dict(names))
        # then
        result = CliRunner().invoke(main, ["gate", "--strict"])
        assert result.output.splitlines()[-1] == "14 of 14 gates passed. The next chunk may start."
        assert f"steps {last_step - 49} to {last_step}, 50 steps recorded in 1 attempt" in result.output
        assert result.exit_code == 0


def test_the_page_tells_every_gate_in_its_order_and_every_status() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == GATE_NAMES
    assert all(f"**{status}**" in PAGE for status in get_args(GateStatus))
    # and its example is one of them all
    assert [line.split()[1] for line in PAGE.splitlines() if re.match(r"(passed|failed|unknown)  ", line)] == [
        *GATE_NAMES
    ]
