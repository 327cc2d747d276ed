"""A Trainer that resumes with another schedule than its checkpoint's: the rate of its first step is told."""

import logging
from pathlib import Path

import pytest
from transformers import TrainerCallback

import trimtab
from trimtab.integrations.hf_first_rate import _max_steps_in

NUM_BEFORE = 6


class Stop(TrainerCallback):
    """Ends a chunk."""

    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.at:
            control.should_training_stop = True


def trained(bench, *, out=None, stop_at=None, attach=None, **args):
    """A training, resumed where `out` is given, and the lines that it said of its first step."""
    settings = dict(lr_scheduler_type="linear", max_steps=NUM_BEFORE, save_strategy="steps", save_steps=NUM_BEFORE)
    settings |= args if out is None else args | dict(output_dir=str(out))
    trainer = bench.trainer(dict(args=settings))
    if stop_at is not None:
        trainer.add_callback(Stop(stop_at))
    run = trimtab.attach(trainer, **(attach or {}))
    trainer.train(resume_from_checkpoint=out is not None)
    steps = trimtab.open_log(run.folder).step_columns()
    return Path(trainer.args.output_dir), dict(zip(steps.step.tolist(), steps.lr.tolist(), strict=True))


def told(caplog):
    return [record.getMessage() for record in caplog.records if "is taken at" in record.getMessage()]


@pytest.fixture(autouse=True)
def _lines(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")


def test_a_training_that_is_made_longer_is_told_with_the_rate_of_its_first_step(bench, caplog):
    out, _ = trained(bench)
    _, rates = trained(bench, out=out, max_steps=12)

    assert [rates[step] for step in (7, 8, 12)] == pytest.approx([0, 1e-3 * 5 / 12, 1e-3 / 12])
    [line] = told(caplog)
    assert line.startswith(
        "checkpoint-6: max_steps was 6 when the checkpoint was saved, and is 12. Step 7 is taken at 0, the rate in the "
        "checkpoint, where the trainer's schedule has 0.0005; every later step has the rate of that schedule. "
        "attach(lr_on_resume=0.001) takes the first one at it too. A training in chunks has the final max_steps"
    )


def test_with_the_rate_that_is_asked_for_the_first_step_is_that_of_the_longer_schedule(bench, caplog):
    out, _ = trained(bench, lr_scheduler_type="cosine", warmup_steps=2)
    _, rates = trained(
        bench, out=out, max_steps=12, lr_scheduler_type="cosine", warmup_steps=2, attach=dict(lr_on_resume=1e-3)
    )

    schedule = trimtab.Schedule(form="cosine", lr=1e-3, num_steps=12, num_warmup_steps=2)
    assert [rates[step] for step in range(7, 13)] == pytest.approx([schedule.rate(step) for step in range(7, 13)])
    assert told(caplog) == []


def test_chunks_of_the_final_length_have_the_rates_of_one_training_and_nothing_is_told(bench, caplog):
    _, whole = trained(bench, max_steps=12)
    out, _ = trained(bench, max_steps=12, stop_at=NUM_BEFORE)
    _, rates = trained(bench, out=out, max_steps=12)

    assert rates == whole
    assert told(caplog) == []


def test_another_warm_up_is_told_too(bench, caplog):
    out, _ = trained(bench, max_steps=12, stop_at=NUM_BEFORE)
    _, rates = trained(bench, out=out, max_steps=12, warmup_steps=9)

    assert rates[7] == pytest.approx(1e-3 / 2)
    [line] = told(caplog)
    assert line.startswith(
        "checkpoint-6: its schedule had other settings than the trainer's has. Step 7 is taken at 0.0005, the rate in "
        "the checkpoint, where the trainer's schedule has 0.0006667; "
    )
    assert "chunks" not in line


@pytest.mark.parametrize("found", ["lost", '{"max_steps": "6"}'])
def test_a_checkpoint_that_does_not_say_what_it_was_trained_to_is_told_without(tmp_path, found):
    if found != "lost":
        (tmp_path / "trainer_state.json").write_text(found)
    assert _max_steps_in(tmp_path) is None
