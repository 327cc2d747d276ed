"""A Trainer that was interrupted goes on from its checkpoint: same run, same weights, same verdicts; and what else may
lie where the run's state should be."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainerCallback

import trimtab
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.integrations.hf_checkpoint import MAX_SIZE_BYTES, STATE_NAME, SavedState, save_state
from trimtab.run import RunCore
from trimtab.values import RunHeader

GUARD = GuardConfig(multiplier=3.0)
SAVED_AT = 2
ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=SAVED_AT)


class Stops(TrainerCallback):
    """Ends a training in the middle of the step after its checkpoint."""

    def on_substep_end(self, args, state, control, **_):
        if state.global_step == SAVED_AT:
            raise KeyboardInterrupt


def decided(run, *, attempt=None):
    """(step, micro, row, verdict) of every record in the log; of one attempt only, if it is given."""
    table = trimtab.open_log(run.folder).rows().numpy()
    columns = (table[name].tolist() for name in ("attempt", "step", "micro", "row", "verdict"))
    return [record[1:] for record in zip(*columns, strict=True) if attempt in (None, record[0])]


def weights_of(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture
def spiked(bench):
    """A setting, and faults at the first micro-batch after the checkpoint, where an empty window would keep them."""
    setting = dict(args=ARGS)
    [row, _] = bench.train(setting).probe.rows[SAVED_AT + 1][0]
    return setting, dict(costly=[row])


@pytest.fixture
def interrupted(bench, spiked, tmp_path):
    """Trains until after the checkpoint; gives a trainer with the same folder that can go on, and the first run."""
    setting, faults = spiked
    setting = dict(setting, args=dict(ARGS, output_dir=str(tmp_path / "out")))

    def interrupted(**attach):
        trainer = bench.trainer(setting, faults=faults)
        run = trimtab.attach(trainer, **attach)
        trainer.add_callback(Stops())
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        return bench.trainer(setting, faults=faults), run

    return interrupted


CHECKPOINT = f"checkpoint-{SAVED_AT}"


# ------------------------------------------------------------------------------------------------------------ going on


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("rule", [dict(multiplier=3.0), dict(rule="robust", min_history=4)], ids=["mean", "robust"])
def test_a_resumed_training_is_the_uninterrupted_one(bench, spiked, interrupted, rule, decide):
    # given
    guard = GuardConfig(**rule, decide=decide)
    setting, faults = spiked
    whole = bench.train(setting, attach=dict(guard=guard), faults=faults)
    expected = decided(whole.run)
    assert {step for step, _, _, verdict in expected if verdict == "spike"} >= {SAVED_AT + 1}
    # when
    trainer, first = interrupted(guard=guard)
    run = trimtab.attach(trainer, guard=guard)
    trainer.train(resume_from_checkpoint=True)
    # then
    assert same(weights_of(trainer), whole.weights)
    assert decided(run, attempt=2) == [record for record in expected if record[0] > SAVED_AT]
    assert (run.folder, run.run_id) == (first.folder, first.run_id)
    own = run.state_dict()
    assert own["guard"] == whole.run.state_dict()["guard"]
    assert trimtab.rewind(run.folder).num_steps == 8


@pytest.mark.parametrize("name", ["as a path", "as text", "by its place"])
def test_the_checkpoint_may_be_named_in_any_way_that_the_trainer_takes(bench, interrupted, name):
    trainer, first = interrupted(guard=GUARD)
    run = trimtab.attach(trainer, guard=GUARD)
    folder = Path(trainer.args.output_dir, CHECKPOINT)
    if name == "by its place":
        trainer.train(str(folder))
    else:
        trainer.train(resume_from_checkpoint=folder if name == "as a path" else str(folder))
    assert run.run_id == first.run_id


def test_a_training_without_a_guard_goes_on_as_the_same_run(interrupted, said):
    trainer, first = interrupted()
    run = trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=True)
    assert run.run_id == first.run_id
    steps = trimtab.open_log(run.folder).steps().numpy()
    assert steps["step"][steps["attempt"] == 2].tolist() == [3, 4, 5, 6, 7, 8]
    assert not [line for line in said() if "state" in line]


def test_without_recording_the_guard_goes_on_all_the_same(bench, spiked, interrupted):
    setting, faults = spiked
    whole = bench.train(setting, attach=dict(guard=GUARD, record=False), faults=faults)
    trainer, _ = interrupted(guard=GUARD, record=False)
    trimtab.attach(trainer, guard=GUARD, record=False)
    trainer.train(resume_from_checkpoint=True)
    assert same(weights_of(trainer), whole.weights)


def test_the_same_trainer_goes_on_as_the_same_run(bench, spiked, tmp_path):
    setting, faults = spiked
    trainer = bench.trainer(setting, faults=faults)
    run = trimtab.attach(trainer, guard=GUARD)
    stops = Stops()
    trainer.add_callback(stops)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    first = run.run_id
    trainer.remove_callback(stops)
    trainer.train(resume_from_checkpoint=True)
    assert run.run_id == first
    assert set(trimtab.open_log(run.folder).step_columns().attempt.tolist()) == {1, 2}
    # and the third training, from the beginning, is another
    trainer.train()
    assert run.run_id != first


def test_what_was_recorded_before_the_training_does_not_keep_it_from_going_on(interrupted):
    trainer, first = interrupted(guard=GUARD)
    run = trimtab.attach(trainer, guard=GUARD)
    run.event("note", text="before")
    trainer.train(resume_from_checkpoint=True)
    assert run.run_id == first.run_id


def test_the_run_that_attach_was_told_to_continue_is_continued(interrupted):
    trainer, _ = interrupted(guard=GUARD, run_id="mine")
    run = trimtab.attach(trainer, guard=GUARD, run_id="another")
    trainer.train(resume_from_checkpoint=True)
    assert run.run_id == "another"


def test_nothing_is_left_in_a_checkpoint_where_there_is_nothing_to_go_on_with(bench):
    trained = bench.train(dict(args=ARGS), attach=dict(record=False))
    assert not list(Path(trained.trainer.args.output_dir).glob(f"*/{STATE_NAME}"))


# ------------------------------------------------------------------------------------------ where, and when it is saved


class EndsInSaving(Trainer):
    """Ends after its model is saved in a checkpoint, as a machine does that is taken away then."""

    def _save_optimizer_and_scheduler(self, output_dir):
        if self.state.global_step == 2 * SAVED_AT:
            raise KeyboardInterrupt
        super()._save_optimizer_and_scheduler(output_dir)


def test_a_checkpoint_that_is_whole_for_the_trainer_has_its_state(bench):
    # given
    trainer = bench.trainer(dict(args=dict(ARGS, save_total_limit=1)), cls=EndsInSaving)
    trimtab.attach(trainer, guard=GUARD)
    # when
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    # then the one before is still there, and of the new one Trimtab's file came before the trainer's last
    whole, cut = (Path(trainer.args.output_dir, f"checkpoint-{step}") for step in (SAVED_AT, 2 * SAVED_AT))
    assert {"trainer_state.json", STATE_NAME} <= {path.name for path in whole.iterdir()}
    assert (cut / STATE_NAME).exists()
    assert not (cut / "trainer_state.json").exists()


class SavesElsewhere(Trainer):
    """Has the folder of one trial of a hyperparameter search."""

    def _get_output_dir(self, trial):
        return str(Path(self.args.output_dir, "run-0"))


def test_the_state_is_in_the_folder_that_the_trainer_uses(bench):
    trainer = bench.trainer(dict(args=ARGS), cls=SavesElsewhere)
    trimtab.attach(trainer, guard=GUARD)
    trainer.train()
    out = Path(trainer.args.output_dir)
    checkpoints = sorted(path.relative_to(out) for path in out.glob("**/checkpoint-*"))
    assert checkpoints == [Path("run-0", f"checkpoint-{step}") for step in (2, 4, 6, 8)]
    assert sorted(path.parent.relative_to(out) for path in out.glob(f"**/{STATE_NAME}")) == checkpoints


class SavesItself(TrainerCallback):
    def __init__(self, trainer, folder):
        self.trainer, self.folder = trainer, folder

    def on_step_end(self, args, state, control, **_):
        self.trainer.save_model(self.folder / f"checkpoint-{state.global_step}")


def test_a_model_that_the_user_saves_is_the_users(bench, tmp_path):
    trainer = bench.trainer(dict(args=ARGS | dict(save_strategy="no")))
    trimtab.attach(trainer, guard=GUARD)
    trainer.add_callback(SavesItself(trainer, tmp_path / "own"))
    trainer.train()
    trainer.save_model(output_dir=str(tmp_path / "own" / "end"))
    trainer.save_model()
    assert len(list(tmp_path.glob("own/*/model.safetensors"))) == 9
    assert not list(tmp_path.glob(f"**/{STATE_NAME}"))


def test_what_an_earlier_training_left_in_the_folder_does_not_stay(bench, said):
    # given
    trainer = bench.trainer(dict(args=ARGS))
    folder = Path(trainer.args.output_dir, CHECKPOINT)
    folder.mkdir(parents=True)
    (folder / STATE_NAME).write_text("of another training")
    (folder / f"{STATE_NAME}.new").write_text("killed as it wro")
    # when
    trimtab.attach(trainer, guard=GUARD)
    trainer.train()
    # then
    assert json.loads((folder / STATE_NAME).read_bytes())["step"] == SAVED_AT + 1
    own = {path.name for path in folder.iterdir() if "trimtab" in path.name}
    assert own == {STATE_NAME, "trimtab_manifest.json"}
    assert not [line for line in said() if "is not in" in line]


# ----------------------------------------------------------------------------------------------------- without a state


def test_a_checkpoint_without_a_state_is_said_in_one_line_and_the_window_is_empty(interrupted, said):
    # given
    trainer, first = interrupted(guard=GUARD)
    path = Path(trainer.args.output_dir, CHECKPOINT, STATE_NAME)
    path.unlink()
    # when
    run = trimtab.attach(trainer, guard=GUARD)
    trainer.train(resume_from_checkpoint=True)
    # then
    [line] = [line for line in said() if f"{path.parent} holds no {STATE_NAME}" in line]
    assert "it was saved without Trimtab, or the file could not be written or was not copied. The guard" in line
    assert {verdict for step, *_, verdict in decided(run) if step == SAVED_AT + 1} == {"warmup"}
    assert run.run_id != first.run_id


@pytest.mark.parametrize("missing", ["folder", "checkpoints"])
def test_a_checkpoint_that_is_not_there_is_the_trainers_to_refuse(bench, missing):
    trainer = bench.trainer()
    trimtab.attach(trainer, guard=GUARD)
    with pytest.raises(ValueError, match="valid checkpoint"):
        trainer.train(resume_from_checkpoint="no/such/folder" if missing == "folder" else True)


def test_a_folder_that_refuses_the_state_costs_no_step(tmp_path, said):
    (tmp_path / "gone").touch()
    for _ in range(2):
        save_state(tmp_path / "gone", {"version": 1})
    assert [line for line in said() if "is not in" in line] == [
        f"Trimtab's state is not in {tmp_path / 'gone'} ({os.strerror(errno.EEXIST)}): a training that is resumed from "
        "there is a new run, and its guard begins with an empty window. Said once."
    ]


def test_a_state_that_nobody_would_read_is_not_written(tmp_path, said):
    save_state(tmp_path, {"version": 1})
    save_state(tmp_path, {"version": 1, "guard": "x" * MAX_SIZE_BYTES})
    assert list(tmp_path.iterdir()) == []
    assert os.strerror(errno.EFBIG) in said()[-1]


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("guard", "told"),
    [(GuardConfig(rule="robust"), "rule 'mean'; here rule is 'robust'"), (GuardConfig(multiplier=4.0), "multiplier 3")],
    ids=["rule", "setting"],
)
def test_a_state_of_another_rule_is_refused_before_anything_is_loaded(interrupted, guard, told):
    # given
    trainer, first = interrupted(guard=GUARD)
    trimtab.attach(trainer, guard=guard)
    before, files = weights_of(trainer), sorted(first.folder.iterdir())
    # when
    with pytest.raises(UsageError, match=told) as caught:
        trainer.train(resume_from_checkpoint=True)
    # then it says where, and what to do
    path = Path(trainer.args.output_dir, CHECKPOINT, STATE_NAME)
    assert str(caught.value).startswith(f"{path}: ")
    assert "Build the guard or rule as it was" in str(caught.value)
    assert "delete this file" in str(caught.value)
    assert same(weights_of(trainer), before)
    assert sorted(first.folder.iterdir()) == files


def test_a_state_that_was_refused_can_be_left_out(interrupted):
    trainer, _ = interrupted(guard=GUARD)
    trimtab.attach(trainer, guard=GuardConfig(multiplier=4.0))
    with pytest.raises(UsageError):
        trainer.train(resume_from_checkpoint=True)
    Path(trainer.args.output_dir, CHECKPOINT, STATE_NAME).unlink()
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 8


def core():
    return RunCore(RunHeader(run_id=None, backend="torch"), guard=GUARD, record=False)


def written(**entries):
    """Puts a state in which some entries are others in the place of a file."""
    return lambda path: path.write_text(json.dumps(core().state_dict() | entries))


def edited(old, new):
    """Likewise, with a piece of its text replaced."""

    def put(path):
        text = json.dumps(core().state_dict())
        assert old in text
        path.write_text(text.replace(old, new))

    return put


def no_file(path):
    path.mkdir()


def too_large(path):
    path.touch()
    os.truncate(path, MAX_SIZE_BYTES + 1)


def loop(path):
    path.symlink_to(path)


HOSTILE = {
    "a pickle": (lambda path: torch.save({"version": 1}, path), "no JSON"),
    "cut": (lambda path: path.write_text(json.dumps(core().state_dict())[:-9]), "no JSON"),
    "empty": (lambda path: path.touch(), "no JSON"),
    "nested": (lambda path: path.write_text("[" * 100_000), "no JSON"),
    "a number without end": (lambda path: path.write_text('{"version": ' + "9" * 10_000 + "}"), "no JSON"),
    "no object": (lambda path: path.write_text("[1]"), "no JSON object"),
    "no state": (lambda path: path.write_text("{}"), "the run has no version"),
    "another version": (lambda path: path.write_text('{"version": 7}'), "version 7, expected 3"),
    "a truth as version": (written(version=True), "version True, expected 3"),
    "a truth as version of the guard": (edited('"guard": {"version": 1', '"guard": {"version": true'), "version True"),
    "a name twice": (edited('"run_id"', '"version": 99, "run_id"'), "a name twice"),
    "a name twice within": (edited('"last_step": null', '"last_step": null, "last_step": 3'), "a name twice"),
    "too large": (too_large, f"more than {MAX_SIZE_BYTES} bytes"),
    "a folder": (no_file, "no file"),
    "a pipe": (os.mkfifo, "no file"),
    "a loop": (loop, "no file|cannot be read"),
    "climbing": (written(run_id="../../x"), "run_id"),
    "a run of a long name": (written(run_id="x" * 1_000_000), "the first a letter or digit[.] To leave"),
    "not a number": (edited('"last_step": null', '"last_step": NaN'), "found no JSON"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_state_is_refused_with_its_name_and_what_to_do(tmp_path, kind):
    make, told = HOSTILE[kind]
    make(tmp_path / STATE_NAME)
    with pytest.raises(UsageError, match=told) as caught:
        SavedState(tmp_path).check(core())
    assert len(str(caught.value)) < 400 + len(str(tmp_path))
    assert str(tmp_path / STATE_NAME) in str(caught.value)
    assert "delete this file" in str(caught.value)


def test_a_state_appears_whole_and_as_readable_as_its_neighbours(tmp_path):
    (tmp_path / "neighbour").touch()
    save_state(tmp_path, {"version": 0})
    save_state(tmp_path, state := core().state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbour", STATE_NAME]
    assert json.loads((tmp_path / STATE_NAME).read_bytes()) == state
    assert (tmp_path / STATE_NAME).stat().st_mode == (tmp_path / "neighbour").stat().st_mode
