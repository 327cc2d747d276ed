"""A load that somebody else's code refuses in its middle puts everything back, or names what it could not."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab import GuardConfig, Run, UsageError
from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError


class Model(nn.Module):
    """One with tied weights, a running statistic and an extra state."""

    def __init__(self, *, refuses=False, extra=None):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.outer.weight = self.inner.weight
        self.refuses, self.extra = refuses, {"seen": 0} if extra is None else extra

    def forward(self, rows):
        return self.outer(self.inner(self.norm(rows)))

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        if self.refuses:
            raise ValueError("of another version")
        self.extra = state


def made(seed, model=None, *, num_steps=2):
    torch.manual_seed(seed)
    model = Model() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 * (seed + 1))
    parts = {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler.StepLR(optimizer, 3)}
    for _ in range(num_steps):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        parts["scheduler"].step()
    return parts


def bits(parts):
    random_numbers = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    return str([copy.deepcopy(part.state_dict()) for part in parts.values()] + [random_numbers])


@pytest.fixture(autouse=True)
def whole_tensors():
    torch.set_printoptions(profile="full", precision=17)
    yield
    torch.set_printoptions(profile="default")


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpointer(tmp_path, run_id="a")
    for step in (4, 5):
        checkpoints.save(step, **made(0, num_steps=step))
    return checkpoints


def refused(checkpoints, parts, *, error=CheckpointError, **more):
    before = bits(parts)
    with pytest.raises(error) as raised:
        checkpoints.load(checkpoints.pick(), **parts, **more)
    assert bits(parts) == before
    return str(raised.value)


def refuse(*_):
    torch.rand(3)  # whoever is called may draw
    raise RuntimeError("planted")


PLANTS = {
    "a hook before the model loads": lambda parts: parts["model"].register_load_state_dict_pre_hook(refuse),
    "a hook after the model was loaded": lambda parts: parts["model"].register_load_state_dict_post_hook(refuse),
    "a hook of a module inside": lambda parts: parts["model"].outer.register_load_state_dict_post_hook(refuse),
    "a hook before the optimizer loads": lambda parts: parts["optimizer"].register_load_state_dict_pre_hook(refuse),
    "a hook after it was loaded": lambda parts: parts["optimizer"].register_load_state_dict_post_hook(refuse),
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("num_steps", [0, 2])
def test_everything_is_back_to_the_last_bit_whatever_refused_the_load(plant, num_steps, checkpoints):
    parts = made(1, num_steps=num_steps)
    PLANTS[plant](parts)
    message = refused(checkpoints, parts)
    assert message == (
        f"{checkpoints.folder / 'step_5'}: its state was refused: RuntimeError: planted. Nothing was loaded. Use "
        f"{checkpoints.folder / 'step_4'} instead."
    )


def test_an_extra_state_that_is_refused_leaves_the_weights_as_they_were(checkpoints):
    message = refused(checkpoints, made(1, Model(refuses=True)))
    assert "ValueError: of another version. Nothing was loaded." in message


def test_a_start_from_the_weights_alone_is_taken_back_too(checkpoints):
    assert "Nothing was loaded." in refused(checkpoints, {"model": made(1, Model(refuses=True))["model"]})


def test_what_is_not_taken_back_is_named(checkpoints):
    class Once(Model):
        def set_extra_state(self, state):
            self.extra = {"seen": 7}
            refuse()

    with pytest.raises(CheckpointError, match=r"planted\. model may be half loaded: make them anew before you go on\."):
        checkpoints.load(checkpoints.pick(), **made(1, Once()))


def test_a_scheduler_that_refuses_every_state_is_put_back(checkpoints):
    class StepLR(lr_scheduler.StepLR):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            refuse()

    parts = made(1)
    parts["scheduler"] = StepLR(parts["optimizer"], 3)
    assert "Nothing was loaded." in refused(checkpoints, parts)


def test_a_scaler_is_put_back(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(0), scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    parts = {**made(1), "scaler": torch.amp.GradScaler("cpu")}
    parts["model"].register_load_state_dict_post_hook(refuse)
    assert "Nothing was loaded." in refused(checkpoints, parts)


def test_an_interrupt_puts_everything_back(checkpoints):
    def interrupt(*_):
        raise KeyboardInterrupt

    parts = made(1)
    parts["model"].register_load_state_dict_post_hook(interrupt)
    refused(checkpoints, parts, error=KeyboardInterrupt)


def test_after_a_load_that_was_refused_another_one_loads(checkpoints):
    model = Model(refuses=True)
    parts = made(1, model)
    refused(checkpoints, parts)
    model.refuses = False
    checkpoints.load(checkpoints.pick(), **parts)
    assert str(parts["optimizer"].state_dict()) == str((whole := made(0, num_steps=5))["optimizer"].state_dict())
    assert str(parts["model"].state_dict()) == str(whole["model"].state_dict())


def test_an_extra_state_that_is_a_tensor_may_have_another_length(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(0, Model(extra=torch.arange(5))))
    parts = made(1, Model(extra=torch.zeros(0)))
    checkpoints.load(checkpoints.pick(), **parts)
    assert parts["model"].extra.tolist() == [0, 1, 2, 3, 4]


# What belongs to the run.


class Half(lr_scheduler.LRScheduler):
    """A schedule of a kind that nobody else knows."""

    def get_lr(self):
        return [rate * 0.5 + 0.1 for rate in self.base_lrs]


def run_of(folder, parts, config):
    return Run(folder, model=parts["model"], optimizer=parts["optimizer"], guard=config)


def test_a_rate_that_is_refused_leaves_the_run_as_it_was_and_says_nothing(tmp_path, caplog):
    checkpoints = Checkpointer(tmp_path / "saved")
    config = GuardConfig(rule="robust")
    parts = made(0, num_steps=0)
    parts["scheduler"] = Half(parts["optimizer"])
    with run_of(tmp_path / "log", parts, config) as run:
        losses = parts["model"](torch.randn(4, 3)).square().mean(1)
        run.micro_batch(losses, rows=torch.arange(4), per="sample").backward()
        run.step()
        checkpoints.save(1, **parts, run=run)
    parts = made(1, num_steps=0)
    parts["scheduler"] = Half(parts["optimizer"])
    caplog.clear()
    with run_of(tmp_path / "another", parts, config) as run:
        before = run.state_dict()
        assert "Half" in refused(checkpoints, parts, error=UsageError, lr=5e-3, run=run)
        assert run.state_dict() == before
    assert "a new run is begun" not in caplog.text


def test_a_rate_that_is_refused_at_the_saved_place_alone_is_refused_before_anything_is_loaded(tmp_path, caplog):
    def plateau(parts):
        parts["scheduler"] = lr_scheduler.ReduceLROnPlateau(parts["optimizer"], patience=0, min_lr=5e-3)
        return parts

    checkpoints = Checkpointer(tmp_path)
    saved = plateau(made(0, num_steps=0))
    for _ in range(6):
        saved["scheduler"].step(1.0)
    checkpoints.save(3, **saved)
    parts = plateau(made(1, num_steps=0))
    parts["optimizer"].register_load_state_dict_pre_hook(refuse)
    assert "ReduceLROnPlateau" in refused(checkpoints, parts, error=UsageError, lr=0.5)


class Loader:
    def load_state_dict(self, state):
        refuse()


def test_a_loader_that_refuses_its_position_is_named_and_the_rest_is_back(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(0), data={"rows": 3})
    assert "data may be half loaded" in refused(checkpoints, made(1), data=Loader())


def test_another_model_is_called_another_model_and_not_another_optimizer(checkpoints):
    message = refused(checkpoints, made(1, nn.Linear(3, 3)))
    assert "it is not of this model" in message


class _Copies(nn.Linear):
    """A model whose state is made of copies."""

    def state_dict(self, *args, **kwargs):
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


class _Refuses:
    def state_dict(self):
        return {"row": 3}

    def load_state_dict(self, state):
        raise ValueError("of another loader")


def test_a_model_whose_state_is_made_of_copies_gets_its_weights_back(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, **made(0, _Copies(3, 3)), data={"row": 3})
    parts = made(1, _Copies(3, 3))
    message = refused(checkpoints, parts, data=_Refuses())
    assert "data may be half loaded" in message
