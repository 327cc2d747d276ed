"""What a Trainer's rotation deletes: by age, as ever, but never the last healthy checkpoint."""

import math
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainerCallback

import trimtab
from trimtab.errors import CheckpointError
from trimtab.resume.select import pick

ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=2)
ROWS = [{"input_ids": [1, 70, 80, 90], "labels": [1, 70, 80, 90]}] * 2
BEST = dict(eval_strategy="steps", eval_steps=2, metric_for_best_model="loss", load_best_model_at_end=True)


class Breaks(TrainerCallback):
    """Makes a moment of a weight infinite after one step, and what follows finite again after another."""

    def __init__(self, *, at, until=math.inf):
        self.at, self.until = at, until

    def on_step_end(self, args, state, control, optimizer, **_):
        held = [optimizer.optimizer.state[weight] for group in optimizer.param_groups for weight in group["params"]]
        with torch.no_grad():
            if state.global_step == self.at:
                held[0]["exp_avg"].fill_(math.inf)
            if state.global_step == self.until:
                for tensor in [value for moments in held for value in moments.values()]:
                    tensor.nan_to_num_(0.0, 0.0, 0.0)
                for weight in [weight for group in optimizer.param_groups for weight in group["params"]]:
                    weight.nan_to_num_(0.0, 0.0, 0.0)


@pytest.fixture
def left(bench):
    """Trains; gives the trainer, and the steps whose checkpoints are left."""

    def left(*, callbacks=(), **args):
        trainer = bench.train(dict(args=ARGS | args), attach={}, callbacks=list(callbacks), eval_dataset=ROWS).trainer
        return trainer, steps(trainer)

    return left


def steps(trainer):
    folders = Path(trainer.args.output_dir).glob("checkpoint-*")
    return sorted(int(folder.name.partition("-")[2]) for folder in folders)


def test_the_last_healthy_checkpoint_outlives_a_limit_of_one(left, bench, said):
    # given a training that breaks before its third checkpoint
    trainer, found = left(callbacks=[Breaks(at=5)], save_total_limit=1)
    out = Path(trainer.args.output_dir)
    # then the healthy one is there, beside as many of the others as the user wants
    assert found == [4, 8]
    assert pick(out, healthy=True).path == out / "checkpoint-4"
    assert trainer.args.save_total_limit == 1
    [line] = [line for line in said() if "is not healthy" in line]
    assert "save_total_limit=1 deletes no healthy one while that is so." in line
    # when
    resumed = bench.trainer(dict(args=ARGS | dict(output_dir=str(out))))
    trimtab.attach(resumed)
    # then
    with pytest.raises(CheckpointError, match="The last healthy one is checkpoint-4"):
        resumed.train(resume_from_checkpoint=True)


def test_as_many_unhealthy_ones_are_kept_as_the_user_wants(left):
    _, found = left(callbacks=[Breaks(at=4)], save_total_limit=2, save_steps=1)
    assert found == [2, 3, 7, 8]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_healthy_training_is_rotated_as_ever(left, limit):
    trainer, found = left(save_total_limit=limit)
    assert found == [2, 4, 6, 8][-limit:]
    assert trainer.args.save_total_limit == limit


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_without_a_limit_nothing_is_deleted(left, limit, said):
    _, found = left(callbacks=[Breaks(at=3)], save_total_limit=limit)
    assert found == [2, 4, 6, 8]
    assert not [line for line in said() if "save_total_limit" in line]


def test_a_training_that_has_come_back_is_rotated_as_ever(left):
    _, found = left(callbacks=[Breaks(at=3, until=7)], save_total_limit=1)
    assert found == [8]


def test_the_best_one_stays_beside_the_last_healthy_one(left):
    trainer, found = left(callbacks=[Breaks(at=5)], save_total_limit=1, **BEST)
    best = trainer.state.best_global_step
    assert best == 2
    assert found == [best, 4, 8]


@pytest.mark.parametrize("ends", [6, 8])
def test_a_best_one_that_is_not_healthy_is_not_the_only_one_that_is_left(left, ends):
    """Stock transformers 5.24 deletes all but the best one as a training ends, if the limit is one."""
    # given one whose moments break right before its best evaluation, and that comes back
    breaks = Breaks(at=6, until=7)
    worse = dict(learning_rate=3e-2)
    # when
    trainer, found = left(callbacks=[breaks, Worse(after=6)], save_total_limit=1, max_steps=ends, **BEST, **worse)
    # then
    assert trainer.state.best_global_step == 6
    assert found == ([2, 4, 6] if ends == 6 else [6, 8])  # 2 was the best one up to there
    assert trainer.args.save_total_limit == 1


class Worse(TrainerCallback):
    """Makes every evaluation after a step a bad one."""

    def __init__(self, *, after):
        self.after = after

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step > self.after:
            with torch.no_grad():
                model.lm_head.weight.copy_(torch.randn(model.lm_head.weight.shape) * 100)


class EndsInSaving(Trainer):
    """Ends inside of its save after step 6, when its model is written."""

    def _save_optimizer_and_scheduler(self, output_dir):
        if self.state.global_step == 6:
            raise KeyboardInterrupt
        super()._save_optimizer_and_scheduler(output_dir)


def test_the_users_limit_is_put_back_whatever_ends_the_training(bench):
    # given
    trainer = bench.trainer(dict(args=ARGS | dict(save_total_limit=1)), cls=EndsInSaving, callbacks=[Breaks(at=5)])
    trimtab.attach(trainer)
    # when
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    # then
    assert trainer.args.save_total_limit == 1
    assert steps(trainer) == [4, 6]


def test_a_limit_that_the_user_sets_between_two_trainings_is_the_one_that_holds(bench):
    # given
    trainer = bench.trainer(dict(args=ARGS | dict(save_total_limit=1)), callbacks=[Breaks(at=5, until=8)])
    trimtab.attach(trainer)
    trainer.train()
    # when
    trainer.args.save_total_limit = 2
    trainer.train()
    # then
    assert trainer.args.save_total_limit == 2
