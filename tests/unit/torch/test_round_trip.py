"""A checkpoint is loaded again beside the training that saved it: found the same, and the training is as before."""

import copy
import json
import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab import GuardConfig, Run, open_log
from trimtab.checkpoint import Checkpointer, round_trip

SEQUENCE = torch.tensor([[1, 5, 2, 0, 3, 3]])


pytestmark = pytest.mark.usefixtures("young_heap")


class Tied(nn.Module):
    """Words in, words out: tied weights, a frozen one, buffers, dropout."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        hidden = self.embed(ids) @ self.frozen
        return self.head(self.body(self.norm(hidden.transpose(1, 2)).transpose(1, 2)))


def two_groups(model):
    body = [parameter for name, parameter in model.named_parameters() if "body" in name]
    others = [
        parameter for name, parameter in model.named_parameters() if "body" not in name and parameter.requires_grad
    ]
    return [{"params": body, "lr": 3e-2}, {"params": others, "weight_decay": 0.0}]


OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=1e-2, fused=True, amsgrad=True),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2),
    "lr is a tensor": lambda groups: torch.optim.Adam(
        [{**group, "lr": torch.tensor(1e-2)} for group in groups], lr=torch.tensor(1e-2)
    ),
}

SCHEDULERS = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20),
    "a closure": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.9)], optimizer
    ),
    "in sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, 8)],
        [2],
    ),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20),
}


class Training:
    """A model with what belongs to it, and how it is built."""

    def __init__(self, *, optimizer="adamw", scheduler="cosine", dtype=torch.float32, wrap=lambda model: model):
        self.built_by = (OPTIMIZERS[optimizer], SCHEDULERS[scheduler], dtype, wrap)
        torch.manual_seed(0)
        self.model, self.optimizer, self.scheduler = self.build()
        self.step = 0

    def build(self):
        make_optimizer, make_scheduler, dtype, wrap = self.built_by
        model = wrap(Tied().to(dtype))
        optimizer = make_optimizer(two_groups(getattr(model, "_orig_mod", model)))
        return model, optimizer, make_scheduler(optimizer)

    def train(self, num_steps=3):
        for _ in range(num_steps):
            ids = torch.randint(0, 6, (2, 5))
            loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1).float(), ids.flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()
            self.step += 1
        return self

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}


def there_and_back(training, folder, **more):
    saved = Checkpointer(folder).save(training.step, **training.parts, loss=0.1)
    return round_trip(saved, build=training.build, **training.parts, loss=0.1, step=training.step, **more)


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [*((optimizer, "cosine") for optimizer in OPTIMIZERS), *(("adamw", scheduler) for scheduler in SCHEDULERS)],
)
def test_what_was_saved_is_the_training_to_the_last_bit(optimizer, scheduler, tmp_path):
    training = Training(optimizer=optimizer, scheduler=scheduler).train()
    result = there_and_back(training, tmp_path)
    parts = ("model", "optimizer", "step", *(("scheduler",) if scheduler != "none" else ()), "loss")
    assert (result.same, result.differences, result.parts) == (True, (), parts)
    assert (result.step, result.path) == (3, tmp_path / "step_3")


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_a_training_that_has_not_stepped_yet_is_the_same_too(optimizer, tmp_path):
    assert there_and_back(Training(optimizer=optimizer), tmp_path).same


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=["f16", "bf16", "f64"])
def test_weights_of_every_precision_are_compared_bit_by_bit(dtype, tmp_path):
    assert there_and_back(Training(dtype=dtype, optimizer="momentum").train(), tmp_path).same


@pytest.mark.parametrize("live", ["bare", "compiled"])
@pytest.mark.parametrize("built", ["bare", "compiled"])
def test_the_model_that_is_built_may_be_wrapped_otherwise(live, built, tmp_path):
    wraps = {"bare": lambda model: model, "compiled": lambda model: torch.compile(model, backend="eager")}
    training = Training(wrap=wraps[live]).train()
    training.built_by = (*training.built_by[:3], wraps[built])
    assert there_and_back(training, tmp_path).same


def test_a_weight_that_is_nan_is_the_same_where_its_bits_are(tmp_path):
    training = Training().train()
    with torch.no_grad():
        training.model.frozen[1, 2] = float("nan")
    result = there_and_back(training, tmp_path)
    assert result.same


def test_a_gradient_scaler_travels_too(tmp_path):
    training = Training().train()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    saved = Checkpointer(tmp_path).save(3, **training.parts, scaler=scaler)

    def build():
        return *training.build(), torch.amp.GradScaler("cpu")

    result = round_trip(saved, build=build, **training.parts, scaler=scaler)
    assert (result.same, result.parts) == (True, ("model", "optimizer", "step", "scheduler", "scaler"))
    scaler.update(4.0)
    changed = round_trip(saved, build=build, **training.parts, scaler=scaler)
    assert changed.differences == ("scale of the scaler is 4.0 in the training and 8.0 as loaded",)


# The training is as before.


def everything(training):
    """All that a training decides by, as plain bits."""
    inside = getattr(training.model, "_orig_mod", training.model)
    gradients = [parameter.grad for parameter in inside.parameters()]
    return copy.deepcopy(
        {
            "weights": [(name, value.tolist()) for name, value in inside.state_dict().items()],
            "gradients": [None if gradient is None else gradient.tolist() for gradient in gradients],
            "modes": [module.training for module in inside.modules()],
            "moments": [
                [entry.tolist() if isinstance(entry, torch.Tensor) else entry for entry in state.values()]
                for state in training.optimizer.state.values()
            ],
            "rates": [
                {key: value for key, value in group.items() if key != "params"}
                for group in training.optimizer.param_groups
            ],
            "schedule": training.scheduler.state_dict(),
            "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        }
    )


def test_the_training_and_its_random_numbers_are_as_before(tmp_path):
    training = Training().train()
    training.model.body[2].eval()
    for parameter in training.model.body.parameters():
        parameter.grad = torch.ones_like(parameter)
    saved = Checkpointer(tmp_path).save(3, **training.parts)
    training.train(1)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    before = everything(training)

    def build():
        random.random(), np.random.rand(), torch.rand(3), torch.manual_seed(99)
        return training.build()

    result = round_trip(saved, build=build, **training.parts, probe_ids=SEQUENCE)
    assert not result.same
    assert everything(training) == before


def losses_of_a_run(folder, *, goes_round):
    """Losses, bits and the guard's state of a guarded run that saves every second step."""
    torch.manual_seed(3)
    training = Training()
    checkpoints = Checkpointer(folder / "checkpoints", run_id="a")
    losses = []
    with Run(
        folder,
        model=training.model,
        optimizer=training.optimizer,
        max_grad_norm=1.0,
        guard=GuardConfig(rule="robust"),
        run_id="a",
    ) as run:
        for step in range(1, 9):
            ids = torch.randint(0, 6, (2, 5))
            token_losses = nn.functional.cross_entropy(
                training.model(ids).flatten(0, 1), ids.flatten(), reduction="none"
            ).view(2, 5)
            loss = run.micro_batch(token_losses, rows=[step, step + 1])
            loss.backward()
            run.step()
            training.scheduler.step()
            losses.append(loss.item())
            if step % 2 == 0:
                saved = checkpoints.save(step, **training.parts, run=run, loss=loss)
                if goes_round:
                    assert round_trip(
                        saved,
                        build=training.build,
                        **training.parts,
                        loss=loss,
                        step=step,
                        run=run,
                        probe_ids=SEQUENCE,
                    ).same
        state = run.state_dict()
        path = run.folder
    return (losses, everything(training), {**state, "before": None}), path


def test_a_run_that_loads_each_checkpoint_again_is_the_run_that_does_not(tmp_path):
    plain, _ = losses_of_a_run(tmp_path / "plain", goes_round=False)
    around, path = losses_of_a_run(tmp_path / "around", goes_round=True)
    assert around == plain
    events = [event for event in open_log(path).events().numpy()["kind"].tolist() if event == "round_trip"]
    assert len(events) == 4


def test_a_save_that_a_thread_is_writing_is_waited_for(tmp_path):
    training = Training().train()
    checkpoints = Checkpointer(tmp_path)
    assert checkpoints.save(3, **training.parts, wait=False) is None
    assert round_trip(tmp_path / "step_3", build=training.build, **training.parts).same
    assert checkpoints.wait().step == 3


# What is said.


def test_one_line_says_that_it_is_the_same_and_what_the_model_says(tmp_path, caplog):
    training = Training().train()
    with caplog.at_level(logging.INFO, logger="trimtab"):
        result = there_and_back(training, tmp_path, probe_ids=SEQUENCE)
    [line] = [record for record in caplog.records if "round trip" in record.getMessage()]
    assert line.levelno == logging.INFO
    assert line.getMessage() == str(result)
    assert (
        f"round trip of {tmp_path / 'step_3'}: model, optimizer, step, scheduler and loss as loaded are the training's "
        "to the last bit; what it would say next: The distribution is"
    ) in line.getMessage()


def test_the_log_of_the_run_holds_what_was_found(tmp_path):
    training = Training().train()
    with Run(tmp_path, model=training.model, optimizer=training.optimizer) as run:
        run.micro_batch(training.model(SEQUENCE)[..., 0], rows=[0]).backward()
        run.step()
        saved = Checkpointer(tmp_path / "checkpoints").save(1, **training.parts)
        result = round_trip(saved, build=training.build, **training.parts, run=run, probe_ids=SEQUENCE)
        folder = run.folder
    [facts] = [
        facts
        for kind, facts in zip(*(open_log(folder).events().numpy()[name] for name in ("kind", "facts")), strict=True)
        if kind == "round_trip"
    ]
    assert result.to_facts() == json.loads(facts)
    assert result.to_facts() == {
        "step": 1,
        "name": "step_1",
        "manifest_crc32": result.manifest_crc32,
        "same": True,
        "differences": [],
        "num_differences": 0,
        "parts": ["model", "optimizer", "step", "scheduler"],
        "probe": {
            "shape": result.probe.shape,
            "entropy": result.probe.entropy,
            "cv": result.probe.cv,
            "num_nonfinite": 0,
            "vocabulary_size": 6,
        },
        "probe_problem": None,
    }


def test_a_probe_that_cannot_answer_is_told_and_what_was_compared_stands(tmp_path):
    training = Training().train()
    result = there_and_back(training, tmp_path, probe_ids=torch.tensor([[77]]))
    assert (result.same, result.probe) == (True, None)
    assert result.probe_problem.startswith("IndexError: ")


def test_the_model_is_probed_as_it_was_loaded(tmp_path):
    training = Training().train()
    with torch.no_grad():
        training.model.embed.weight.zero_()
    assert there_and_back(training, tmp_path, probe_ids=SEQUENCE).probe.shape == "uniform"
