"""The schedule that a Trainer's arguments state: its rates are those that the trainer takes its steps with."""

from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments, get_scheduler

import trimtab
from trimtab import GuardConfig, Schedule
from trimtab.gates.judging import judge_chunk
from trimtab.integrations.hf_schedule import schedule_of
from trimtab.values import STEP_REASONS

# Two epochs of seven batches, in windows of two: eight steps, of which the arguments do not tell the number.
ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2)
NUM_STEPS = 8

FORMS = {
    "linear": dict(lr_scheduler_type="linear"),
    "linear, steps of warm-up": dict(lr_scheduler_type="linear", warmup_steps=3),
    "linear, a part of warm-up": dict(lr_scheduler_type="linear", warmup_steps=0.3),
    "cosine": dict(lr_scheduler_type="cosine", warmup_steps=2),
    "cosine, half a wave by name": dict(lr_scheduler_type="cosine", lr_scheduler_kwargs=dict(num_cycles=0.5)),
    "cosine down to a rate": dict(
        lr_scheduler_type="cosine_with_min_lr", warmup_steps=2, lr_scheduler_kwargs=dict(min_lr=2e-4)
    ),
    "cosine down to a part": dict(
        lr_scheduler_type="cosine_with_min_lr", warmup_steps=2, lr_scheduler_kwargs=dict(min_lr_rate=0.1)
    ),
    "constant, whose warm-up has no effect": dict(lr_scheduler_type="constant", warmup_steps=3),
    "constant behind a warm-up": dict(lr_scheduler_type="constant_with_warmup", warmup_steps=3),
    "inverse square root": dict(lr_scheduler_type="inverse_sqrt", warmup_steps=2),
    "inverse square root at once": dict(lr_scheduler_type="inverse_sqrt"),
    "inverse square root, slower": dict(
        lr_scheduler_type="inverse_sqrt", warmup_steps=2, lr_scheduler_kwargs=dict(timescale=30)
    ),
    "stable, then a wave": dict(
        lr_scheduler_type="warmup_stable_decay", warmup_steps=2, lr_scheduler_kwargs=dict(num_decay_steps=3)
    ),
    "stable, then a line down to a part": dict(
        lr_scheduler_type="warmup_stable_decay",
        warmup_steps=3,
        lr_scheduler_kwargs=dict(num_decay_steps=3, decay_type="linear", min_lr_ratio=0.1, num_cycles=3.0),
    ),
    "a warm-up beyond the end": dict(lr_scheduler_type="cosine", warmup_steps=50),
    "steps that are named": dict(lr_scheduler_type="cosine", warmup_steps=2, max_steps=5),
    "no accumulation": dict(lr_scheduler_type="linear", gradient_accumulation_steps=1, warmup_steps=1),
    "another optimizer": dict(lr_scheduler_type="linear", optim="adafactor"),
}


def stated(run):
    """(attempt, step, schedule) of each event, in the order recorded."""
    events = trimtab.open_log(run.folder).event_stream(("schedule",))
    return [(attempt, event.step, Schedule.from_facts(event.facts)) for event, _, attempt in events]


def recorded_rates(run):
    steps = trimtab.open_log(run.folder).step_columns()
    return dict(zip(steps.step.tolist(), steps.lr.tolist(), strict=True))


def logged_rates(trainer):
    return {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}


def rates_gate(run):
    [gate] = [gate for gate in judge_chunk(run.folder, checkpoints=None).gates if gate.name == "learning_rate"]
    return gate


def of(schedule, steps):
    return pytest.approx({step: schedule.rate(step) for step in steps}, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize("name", FORMS)
def test_the_rates_of_every_step_are_those_of_the_schedule_that_the_arguments_state(bench, name):
    trained = bench.train(dict(args=ARGS | FORMS[name]), attach={})

    [(attempt, step, schedule)] = stated(trained.run)
    assert (attempt, step, schedule.lr) == (1, 1, 1e-3)
    found = logged_rates(trained.trainer)
    assert list(found) == list(range(1, trained.trainer.state.max_steps + 1))
    assert found == of(schedule, found)
    assert recorded_rates(trained.run) == of(schedule, found)
    assert rates_gate(trained.run).status == "passed"


def test_a_training_that_is_resumed_states_it_again_for_its_attempt(bench):
    # given
    args = ARGS | FORMS["cosine"] | dict(save_strategy="steps", save_steps=3)
    first = bench.train(dict(args=args), attach={})
    out = Path(first.trainer.args.output_dir)
    # when
    trainer = bench.trainer(dict(args=args | dict(output_dir=str(out))))
    run = trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-3"))
    # then
    [(_, _, schedule), again] = stated(run)
    assert again == (2, 4, schedule)
    assert recorded_rates(run) == of(schedule, range(1, NUM_STEPS + 1))


# A floor is made of the rate that a schedule is built at: with one, both must be the new rate.
@pytest.mark.parametrize(
    ("name", "built_at"),
    [
        ("linear, steps of warm-up", 1e-3),
        ("cosine", 1e-3),
        pytest.param("constant, whose warm-up has no effect", 1e-3, marks=pytest.mark.long),
        ("cosine down to a part", 3e-4),
        pytest.param("cosine down to a rate", 3e-4, marks=pytest.mark.long),
    ],
)
def test_lr_on_resume_is_what_is_asked_for_then(bench, name, built_at):
    # given
    args = ARGS | FORMS[name] | dict(save_strategy="steps", save_steps=3)
    first = bench.train(dict(args=args), attach={})
    out = Path(first.trainer.args.output_dir)
    # when
    trainer = bench.trainer(dict(args=args | dict(output_dir=str(out), learning_rate=built_at)))
    run = trimtab.attach(trainer, lr_on_resume=3e-4)
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-3"))
    # then
    [(_, _, before), (attempt, step, after)] = stated(run)
    assert (before.lr, after.lr, attempt, step) == (1e-3, 3e-4, 2, 4)
    found = recorded_rates(run)
    assert {step: found[step] for step in range(1, 4)} == of(before, range(1, 4))
    assert {step: found[step] for step in range(4, NUM_STEPS + 1)} == of(after, range(4, NUM_STEPS + 1))


def test_a_rate_in_the_arguments_that_a_resume_does_not_use_is_what_was_asked_for_all_the_same(bench):
    """So that the rates of the steps tell that it was not used."""
    args = ARGS | FORMS["cosine"] | dict(save_strategy="steps", save_steps=3)
    first = bench.train(dict(args=args), attach={})
    out = Path(first.trainer.args.output_dir)

    trainer = bench.trainer(dict(args=args | dict(output_dir=str(out), learning_rate=1e-4)))
    run = trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-3"))

    schedule = stated(run)[1][2]
    assert schedule.lr == 1e-4
    assert recorded_rates(run)[4] == pytest.approx(10 * schedule.rate(4))
    gate = rates_gate(run)
    assert (gate.status, gate.figures["step"]) == ("failed", 4)


def test_a_second_training_of_the_same_trainer_states_it_too(bench):
    trainer = bench.trainer(dict(args=ARGS | FORMS["cosine"]))
    run = trimtab.attach(trainer)
    trainer.train()
    first = run.folder
    trainer.train()

    assert run.folder != first
    [(_, step, schedule)] = stated(run)
    assert step == 1
    assert recorded_rates(run) == of(schedule, range(1, NUM_STEPS + 1))


class OwnOptimizer(Trainer):
    def create_optimizer(self, *args):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        return self.optimizer


class OwnScheduler(Trainer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: 0.5)
        return self.lr_scheduler


def with_optimizers(**kept):
    def build(bench):
        model = bench.make_model("llama")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scheduler = get_scheduler("linear", optimizer, 0, NUM_STEPS)
        parts = (optimizer, scheduler if "scheduler" in kept else None)
        return bench.trainer(dict(args=ARGS), model=model, optimizers=parts)

    return build


def with_kind_of_optimizer(bench):
    kind = (torch.optim.SGD, dict(lr=0.5))
    return bench.trainer(dict(args=ARGS), optimizer_cls_and_kwargs=kind)


def with_optimizer_set_later(bench):
    trainer = bench.trainer(dict(args=ARGS))
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1e-3)
    return trainer


def with_hung_scheduler(bench):
    trainer = bench.trainer(dict(args=ARGS))

    def create_scheduler(num_training_steps, optimizer=None):
        trainer.lr_scheduler = get_scheduler("linear", trainer.optimizer, 3, 2 * num_training_steps)
        return trainer.lr_scheduler

    trainer.create_scheduler = create_scheduler
    return trainer


OWN = {
    "an optimizer": with_optimizers(),
    "an optimizer and a scheduler": with_optimizers(scheduler=True),
    "a kind of optimizer": with_kind_of_optimizer,
    "an optimizer set later": with_optimizer_set_later,
    "a scheduler hung on the trainer": with_hung_scheduler,
    "a class with an optimizer": lambda bench: bench.trainer(dict(args=ARGS), cls=OwnOptimizer),
    "a class with a scheduler": lambda bench: bench.trainer(dict(args=ARGS), cls=OwnScheduler),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if "class" in name else ()) for name in OWN]
)
def test_nothing_is_stated_of_an_optimizer_or_a_scheduler_of_the_users_own(bench, name):
    trainer = OWN[name](bench)
    run = trimtab.attach(trainer)
    trainer.train()
    assert stated(run) == []
    assert len(recorded_rates(run)) == NUM_STEPS


@pytest.mark.parametrize(
    "args",
    [
        dict(
            lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=dict(num_decay_steps=9, warmup_type="cosine")
        ),
        dict(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=dict(num_decay_steps=3, decay_type="1-sqrt")),
        dict(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=dict(num_decay_steps=3, num_cycles=1.5)),
        dict(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=dict(num_decay_steps=3, min_lr_ratio=None)),
        dict(lr_scheduler_type="polynomial"),
        dict(lr_scheduler_type="cosine_with_restarts"),
        dict(lr_scheduler_type="cosine", lr_scheduler_kwargs=dict(num_cycles=1.0)),
        dict(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs=dict(min_lr=2e-3)),
        dict(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs=dict(min_lr=1e-4, num_cycles=2.5)),
    ],
    ids=[
        "a warm-up in a wave",
        "a fall as a root",
        "waves at the end",
        "no part",
        "polynomial",
        "restarts",
        "a whole wave",
        "a floor above the rate",
        "waves to a floor",
    ],
)
def test_no_schedule_is_made_of_a_form_that_none_has(tmp_path, args):
    settings = TrainingArguments(str(tmp_path), use_cpu=True, learning_rate=1e-3, **args)
    assert schedule_of(settings, lr=1e-3, num_steps=NUM_STEPS) is None


# Every step of a longer schedule, at which the rates of a training of eight would be too few.
@pytest.mark.parametrize(
    ("kind", "num_warmup_steps", "further"),
    [
        ("linear", 7, {}),
        ("cosine", 7, {}),
        ("cosine_with_min_lr", 7, dict(min_lr_rate=0.2)),
        ("constant_with_warmup", 7, {}),
        ("inverse_sqrt", 7, {}),
        ("inverse_sqrt", 0, {}),
        ("inverse_sqrt", 7, dict(timescale=3)),
        ("inverse_sqrt", 7, dict(timescale=300)),
        ("warmup_stable_decay", 7, dict(num_decay_steps=20)),
        ("warmup_stable_decay", 0, dict(num_decay_steps=20, decay_type="linear", min_lr_ratio=0.25)),
        ("warmup_stable_decay", 7, dict(num_decay_steps=20, min_lr_ratio=0.25)),
        ("warmup_stable_decay", 7, dict(num_decay_steps=20, num_stable_steps=11)),
        ("warmup_stable_decay", 7, dict(num_decay_steps=93)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps:UserWarning")
def test_a_stated_schedule_is_that_of_transformers_at_every_step_and_behind_the_last(
    tmp_path, kind, num_warmup_steps, further
):
    # given
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps, 100, scheduler_specific_kwargs=dict(further))
    args = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        lr_scheduler_type=kind,
        warmup_steps=num_warmup_steps,
        lr_scheduler_kwargs=further,
    )
    # when
    schedule = schedule_of(args, lr=1e-3, num_steps=100)
    # then
    for step in range(1, 101 if kind in ("linear", "cosine", "cosine_with_min_lr") else 200):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule.rate(step), rel=1e-9, abs=1e-18), step
        optimizer.step()
        scheduler.step()


def test_a_training_with_such_a_form_states_none(bench):
    trained = bench.train(dict(args=ARGS | dict(lr_scheduler_type="polynomial")), attach={})
    assert stated(trained.run) == []


@pytest.mark.parametrize("on_dropped", ["advance", "hold"])
def test_a_schedule_that_is_held_at_a_dropped_step_is_stated_as_it_was_asked_for(bench, on_dropped):
    # given: all of the fourth step is bad
    bad = [row for micro in bench.train(dict(args=ARGS)).probe.rows[4] for row in micro]
    setting = dict(args=ARGS | FORMS["cosine"] | dict(num_train_epochs=1, max_steps=7))
    guard = GuardConfig(multiplier=3.0)
    # when
    trained = bench.train(setting, faults=dict(costly=bad), attach=dict(guard=guard, on_dropped=on_dropped))
    # then
    [(_, _, schedule)] = stated(trained.run)
    found = recorded_rates(trained.run)
    lag = int(on_dropped == "hold")
    assert found == pytest.approx({step: schedule.rate(step - lag * (step > 4)) for step in found}, rel=1e-9)
    assert schedule.waits_for_dropped is bool(lag)
    assert rates_gate(trained.run).status == "passed"


# accelerate sees an overflow where the optimizer was not called, and a fused one always is.
@pytest.mark.parametrize(("optim", "waits"), [("adamw_torch", True), ("adamw_torch_fused", False)])
@pytest.mark.parametrize("init_scale", [64.0, 2.0**127], ids=["fits", "overflows"])
def test_whether_a_schedule_waits_for_overflows_is_stated_as_the_trainer_does_it(bench, optim, waits, init_scale):
    # given
    trainer = bench.trainer(dict(args=ARGS | FORMS["cosine"] | dict(optim=optim)))
    # as it would have one on a GPU under fp16
    trainer.accelerator.native_amp, trainer.accelerator.scaler = (
        True,
        torch.amp.GradScaler("cpu", init_scale=init_scale),
    )
    # when
    run = trimtab.attach(trainer)
    trainer.train()
    # then
    [(_, _, schedule)] = stated(run)
    assert schedule.waits_for_dropped is waits
    reasons = [STEP_REASONS[code] for code in trimtab.open_log(run.folder).step_columns().reason]
    overflowed = [reason == "scaler_overflow" for reason in reasons]
    assert any(overflowed) is (init_scale > 64)
    lags = [sum(overflowed[:number]) if waits else 0 for number in range(NUM_STEPS)]
    expected = {step: schedule.rate(step - lag) for step, lag in enumerate(lags, start=1)}
    assert recorded_rates(run) == pytest.approx(expected, rel=1e-9, abs=1e-18)


def test_a_schedule_does_not_wait_where_nothing_may_be_left_out(bench):
    trained = bench.train(dict(args=ARGS), attach=dict(guard=GuardConfig(rule="robust")))
    [(_, _, schedule)] = stated(trained.run)
    assert schedule.waits_for_dropped is False


def test_lr_on_resume_is_not_what_is_asked_for_where_nothing_is_resumed(bench):
    with pytest.warns(trimtab.TrimtabWarning, match="has no effect on a training that begins anew"):
        trained = bench.train(dict(args=ARGS | FORMS["cosine"]), attach=dict(lr_on_resume=3e-4))
    [(_, _, schedule)] = stated(trained.run)
    assert schedule.lr == 1e-3
    assert recorded_rates(trained.run) == of(schedule, range(1, NUM_STEPS + 1))


@pytest.mark.parametrize("off", ["record=False", "TRIMTAB=off"])
def test_nothing_is_written_where_nothing_is_recorded(bench, monkeypatch, off):
    if off == "TRIMTAB=off":
        monkeypatch.setenv("TRIMTAB", "off")
    trained = bench.train(dict(args=ARGS), attach=dict(record=off == "TRIMTAB=off", watch=True))
    assert trained.run.folder is None
    assert not list(Path(trained.trainer.args.output_dir).glob("**/trimtab*"))
