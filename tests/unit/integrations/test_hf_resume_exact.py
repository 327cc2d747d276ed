"""A Trainer that is resumed at any step is, bit for bit, the one that was not interrupted: weights, moments, schedule,
random numbers (there is dropout), losses and rows.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import trimtab
from trimtab.guard import GuardConfig

# Two epochs of seven batches: windows of two, of which the last in each epoch has one.
ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=1)
NUM_STEPS = 8
GUARD = GuardConfig(multiplier=3.0)
SETTINGS = {"plain": {}, "guarded": dict(guard=GUARD), "robust": dict(guard=GuardConfig(rule="robust", min_history=4))}


def make_model():
    """Its attention has dropout: a step draws random numbers."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, vocab_size=128)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, attention_dropout=0.3))


def moments(trainer):
    state = trainer.optimizer.state_dict()["state"]
    return {(place, key): torch.as_tensor(value) for place, held in state.items() for key, value in held.items()}


def logged(trainer, *, after):
    told = ("loss", "grad_norm", "learning_rate")
    return {
        entry["step"]: [entry[key] for key in told]
        for entry in trainer.state.log_history
        if "loss" in entry and entry["step"] > after
    }


def rows(folder, *, after, attempt=None):
    """(step, micro-batch, row, loss sum, verdict) of each record, in the order of the log."""
    table = trimtab.open_log(folder).rows().numpy()
    columns = (table[name].tolist() for name in ("attempt", "step", "micro", "row", "loss_sum", "verdict"))
    records = zip(*columns, strict=True)
    return [record[1:] for record in records if record[1] > after and attempt in (None, record[0])]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


class Whole:
    """Uninterrupted trainings of one file's tests, by their settings."""

    def __init__(self, bench):
        self.bench = bench
        self.found = {}

    def __call__(self, name, workers):
        if (name, workers) not in self.found:
            self.found[name, workers] = self.bench.train(setting(workers), attach=SETTINGS[name], model=make_model())
        return self.found[name, workers]


@pytest.fixture(scope="module")
def whole(trained_once):
    return Whole(trained_once)


def setting(workers, **args):
    return dict(args=ARGS | dict(dataloader_num_workers=workers) | args)


def any_step(workers, *, quick):
    return [
        pytest.param(step, workers, marks=() if step in quick else pytest.mark.long) for step in range(1, NUM_STEPS)
    ]


# Step 4 ends an epoch; 3 and 6 are inside of one.
@pytest.mark.parametrize(("step", "workers"), [*any_step(0, quick=(3, 4, 6)), *any_step(2, quick=(5,))])
@pytest.mark.parametrize("name", ["plain", "guarded", pytest.param("robust", marks=pytest.mark.long)])
def test_a_training_that_is_resumed_at_any_step_is_the_uninterrupted_one(bench, whole, name, step, workers):
    # given
    expected = whole(name, workers)
    checkpoint = Path(expected.trainer.args.output_dir, f"checkpoint-{step}")
    # when
    trainer = bench.trainer(setting(workers, save_strategy="no"), model=make_model())
    run = trimtab.attach(trainer, out=bench.folder / "resumed", **SETTINGS[name])
    torch.rand(99)  # whatever the process has drawn meanwhile
    trainer.train(resume_from_checkpoint=str(checkpoint))
    # then
    assert same(trainer.model.state_dict(), expected.trainer.model.state_dict())
    assert same(moments(trainer), moments(expected.trainer))
    assert trainer.lr_scheduler.state_dict() == expected.trainer.lr_scheduler.state_dict()
    assert logged(trainer, after=step) == logged(expected.trainer, after=step)
    assert rows(run.folder, after=step) == rows(expected.run.folder, after=step)
    assert len(rows(run.folder, after=0)) > 0


def test_a_training_that_begins_elsewhere_is_not_taken_for_the_same(bench, whole):
    """That these comparisons can fail."""
    expected = whole("plain", 0)
    checkpoint = Path(expected.trainer.args.output_dir, "checkpoint-3")
    trainer = bench.trainer(setting(0, save_strategy="no", ignore_data_skip=True), model=make_model())
    run = trimtab.attach(trainer, out=bench.folder / "resumed")
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert not same(trainer.model.state_dict(), expected.trainer.model.state_dict())
    assert rows(run.folder, after=3) != rows(expected.run.folder, after=3)
