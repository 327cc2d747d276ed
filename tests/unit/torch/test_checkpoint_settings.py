"""The settings of a checkpoint, read before anything is built to load it into."""

import pytest
import torch
from torch import nn

from trimtab.checkpoint import Checkpointer, saved_config
from trimtab.errors import CheckpointError


def saved(folder, **more):
    model = nn.Linear(4, 1)
    return Checkpointer(folder).save(7, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **more)


@pytest.mark.parametrize("by", ["info", "path", "text"])
def test_settings_are_read_as_they_were_saved(tmp_path, by):
    # given
    config = {"preset": "tiny", "optim": {"lr": 1e-3, "betas": [0.9, 0.95]}, "guard": None}
    info = saved(tmp_path, config=config)
    # then
    assert saved_config({"info": info, "path": info.path, "text": str(info.path)}[by]) == config


def test_without_settings_there_are_none(tmp_path):
    assert saved_config(saved(tmp_path)) is None


def test_no_weight_is_read_for_them(tmp_path):
    # given
    info = saved(tmp_path, config={"dim": 4})
    (info.path / "model.pt").unlink()
    # then
    assert saved_config(info.path) == {"dim": 4}


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError):
        saved_config(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"weights")
    with pytest.raises(CheckpointError):
        saved_config(tmp_path / "model.pt")


@pytest.mark.parametrize("values", [None, [1, 2], "tiny"], ids=["null", "list", "text"])
def test_what_a_stranger_put_in_the_place_of_values_is_refused(tmp_path, values):
    # given
    info = saved(tmp_path, config={"dim": 4})
    state = torch.load(info.path / "run.pt", weights_only=True)
    torch.save(state | {"values": values}, info.path / "run.pt")
    # then
    with pytest.raises(CheckpointError, match="no mapping"):
        saved_config(info.path)
