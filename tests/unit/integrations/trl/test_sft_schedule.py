"""The schedule that an SFTTrainer's arguments state: its rates are those that the trainer takes its steps with."""

import pytest

import trimtab
from trimtab import Schedule


def test_the_rates_of_every_step_are_those_of_the_schedule_that_the_arguments_state(sft):
    args = dict(lr_scheduler_type="cosine", warmup_steps=0.3, gradient_accumulation_steps=2, num_train_epochs=2)
    trained = sft.train(dict(args=args), attach={})

    [event] = [event for event, *_ in trimtab.open_log(trained.run.folder).event_stream(("schedule",))]
    schedule = Schedule.from_facts(event.facts)
    steps = trained.log.step_columns()
    assert schedule.num_steps == len(steps.step) > 4
    assert schedule.num_warmup_steps > 1
    assert steps.lr.tolist() == pytest.approx([schedule.rate(step) for step in steps.step.tolist()], rel=1e-9)
