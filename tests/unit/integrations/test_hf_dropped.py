"""What the schedule of a `Trainer` does at a step that its guard drops: it advances, or is held."""

import pytest
import torch
from accelerate.state import AcceleratorState

import trimtab
from trimtab import GuardConfig, TrimtabWarning, UsageError
from trimtab.values import STEP_REASONS

DECIDERS = ["host", "device"]
TWO_A_WINDOW = dict(args=dict(gradient_accumulation_steps=2))


@pytest.fixture
def one_precision_a_test():
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def scaled(trainer):
    """Gives a trainer the gradient scaler that it would have on a GPU under fp16."""
    accelerator = trainer.accelerator
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=64.0)
    accelerator.state._mixed_precision = "fp16"
    return trainer


@pytest.mark.usefixtures("one_precision_a_test")
@pytest.mark.parametrize("has_scaler", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("on_dropped", ["advance", "hold"])
def test_the_schedule_does_at_a_dropped_step_what_was_asked_for(bench, on_dropped, optim, decide, has_scaler):
    # given the third of four steps wholly bad
    setting = dict(args=dict(gradient_accumulation_steps=2, optim=optim))
    plan = bench.train(setting).probe
    rates = [rate for _, rate in plan.clock]
    bad = [micro[0] for micro in plan.rows[3]]
    trainer = bench.trainer(setting, faults=dict(costly=bad))
    probe = type(plan)(trainer)
    if has_scaler:
        scaled(trainer)
    run = trimtab.attach(trainer, guard=GuardConfig(multiplier=3.0, decide=decide), on_dropped=on_dropped)
    # when
    trainer.train()
    # then
    told = [STEP_REASONS[code] for code in trimtab.open_log(run.folder).step_columns().reason]
    assert told == ["stepped", "stepped", "all_skipped", "stepped"]
    held = [*rates[:2], rates[1], rates[2]]
    assert [rate for _, rate in probe.clock] == (held if on_dropped == "hold" else rates)
    # and the trainer's own count goes on
    assert [step for step, _ in probe.clock] == [1, 2, 3, 4]
    assert not trainer.accelerator.optimizer_step_was_skipped


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_that_evaluations_move_cannot_be_held(bench, schedule):
    args = dict(lr_scheduler_type=schedule, eval_strategy="steps", eval_steps=2)
    with pytest.raises(UsageError, match=f"cannot hold the schedule {schedule}.*evaluations move it"):
        trimtab.attach(
            bench.trainer(dict(evaluate=True, args=args)), guard=GuardConfig(rule="robust"), on_dropped="hold"
        )


def test_a_schedule_of_the_users_own_that_evaluations_move_cannot_be_held(bench):
    model = bench.make_model("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    trainer = bench.trainer(model=model, optimizers=(optimizer, schedule))
    with pytest.raises(UsageError, match="cannot hold the schedule ReduceLROnPlateau"):
        trimtab.attach(trainer, guard=GuardConfig(rule="robust"), on_dropped="hold")


def test_a_word_for_it_that_is_neither_is_refused(bench):
    with pytest.raises(UsageError, match='"advance" or "hold", found \'stop\''):
        trimtab.attach(bench.trainer(), guard=GuardConfig(rule="robust"), on_dropped="stop")


@pytest.mark.parametrize("guard", [None, GuardConfig()])
@pytest.mark.filterwarnings("ignore:The guard that was handed over is off")
def test_holding_without_a_guard_warns_that_nothing_is_ever_dropped(bench, guard):
    with pytest.warns(TrimtabWarning, match="on_dropped=.hold. does nothing without a guard"):
        trimtab.attach(bench.trainer(), guard=guard, on_dropped="hold", record=False)


def test_an_optimizer_that_no_schedule_asks_is_refused_before_the_first_step(bench):
    # given a trainer whose optimizer is not accelerate's
    trainer = bench.trainer()
    trimtab.attach(trainer, guard=GuardConfig(rule="robust"), on_dropped="hold", record=False)

    class Unwraps(type(trainer.callback_handler.callbacks[-1]).__mro__[1]):
        def on_train_begin(self, args, state, control, **_):
            trainer.optimizer = trainer.optimizer.optimizer

    trainer.callback_handler.callbacks.insert(0, Unwraps())
    # then
    with pytest.raises(UsageError, match="found AdamW, whose schedule cannot be held"):
        trainer.train()
    assert trainer.state.global_step == 0
