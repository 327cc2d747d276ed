"""The examples of docs/resume.md, "Save and go on", pasted one after the other, are a training that goes on."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trimtab import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resume.md"


def pasted() -> str:
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    assert section.startswith("Save and go on")
    examples = "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
    return examples.replace("% 500", "% 4").replace("num_workers=2", "num_workers=0")


def train(num_steps: int, *, out: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with Run(out, model=model, optimizer=optimizer) as run:
        names = {
            "torch": torch,
            "DataLoader": DataLoader,
            "rows": [(torch.tensor([0.1, 0.2, 0.3]) * number, number) for number in range(25)],
            "losses_of": lambda outputs: outputs.square().mean(1),
            "seed": 7,
            "num_steps": num_steps,
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
            "run": run,
        }
        exec(pasted(), names)
    return {"step": names["step"], "weights": [value.tolist() for value in model.state_dict().values()]}


def test_a_run_that_stops_and_goes_on_is_the_one_that_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole = train(10, out=tmp_path / "whole")
    monkeypatch.chdir(tmp_path / "stopped")
    assert train(6, out=tmp_path / "stopped")["step"] == 6

    assert train(10, out=tmp_path / "stopped") == whole
    assert whole["step"] == 10
