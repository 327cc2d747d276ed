"""The examples of docs/resume.md, pasted: a training that goes on, and one whose checkpoint is loaded again."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trimtab import Run
from trimtab.checkpoint import Checkpointer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resume.md"


def examples(heading: str) -> str:
    [section] = [text for text in PAGE.read_text(encoding="utf-8").split("\n## ") if text.partition("\n")[0] == heading]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))


def pasted() -> str:
    return examples("Save and go on").replace("% 500", "% 4").replace("num_workers=2", "num_workers=0")


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


def test_a_checkpoint_that_is_loaded_again_is_the_training_that_saved_it(tmp_path: Path) -> None:
    model = nn.Embedding(5, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    names = {
        "torch": torch,
        "MyModel": lambda config: nn.Embedding(config, config),
        "config": 5,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000),
        "checkpoints": Checkpointer(tmp_path),
        "run": None,
        "step": 500,
        "loss": 2.5,
        "held_out_ids": torch.tensor([[0, 3, 1]]),
    }
    exec(examples("Round trip"), names)
    assert names["result"].same
    assert names["result"].probe.vocabulary_size == 5
