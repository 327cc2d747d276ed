"""Checkpoints as a Trainer and somebody's own loop leave them: real files, saved by torch and safetensors."""

import json

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def states():
    """A model, its optimizer after one step, and a scheduler."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng_state": torch.get_rng_state(),
    }


@pytest.fixture
def hf_checkpoint(tmp_path, states):
    """Makes `checkpoint-<step>` in the layout of a Trainer."""

    def make(step=500, *, where=tmp_path / "out"):
        folder = where / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file(states["model"], folder / "model.safetensors")
        torch.save(states["optimizer"], folder / "optimizer.pt")
        torch.save(states["scheduler"], folder / "scheduler.pt")
        torch.save({"cpu": states["rng_state"]}, folder / "rng_state.pth")
        state = {"epoch": 1.0, "global_step": step, "log_history": [{"step": step, "loss": 1.5}, {"eval_loss": 9.0}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        return folder

    return make
