"""What a Trainer's checkpoint says of itself once it is saved: every file, what holds what, the run, its health."""

import errno
import json
import math
import os
import shutil
import time
import zlib
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainerCallback

import trimtab
from trimtab.guard import GuardConfig
from trimtab.resume.manifest import MANIFEST_NAME, read_manifest
from trimtab.resume.verify import verify

GUARD = GuardConfig(multiplier=3.0)
ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=2)


ROWS = [{"input_ids": [1, 70, 80, 90], "labels": [1, 70, 80, 90]}] * 2


@pytest.fixture
def saved(bench):
    """Trains, and gives the folder of the checkpoint after a step, and what trained."""

    def saved(*, attach=None, step=2, args=None, **more):
        trained = bench.train(dict(args=ARGS | (args or {})), attach=attach if attach is not None else {}, **more)
        return Path(trained.trainer.args.output_dir, f"checkpoint-{step}"), trained

    return saved


@pytest.fixture(scope="module")
def guarded(trained_once):
    """A guarded training with four checkpoints, 2 to 8, and evaluations; for looking at only."""
    evaluates = dict(eval_strategy="steps", eval_steps=2, metric_for_best_model="loss")
    return trained_once.train(dict(args=ARGS | evaluates), attach=dict(guard=GUARD), eval_dataset=ROWS)


@pytest.fixture
def checkpoints(guarded):
    """Its checkpoints by their steps."""
    return {step: Path(guarded.trainer.args.output_dir, f"checkpoint-{step}") for step in (2, 4, 6, 8)}


def crc32s(folder):
    """By hand: every file below a folder with its size and checksum."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, zlib.crc32(path.read_bytes())) for path in files}


# ------------------------------------------------------------------------------------------------------- what it says


def test_a_checkpoint_lists_every_file_with_its_size_and_checksum(checkpoints):
    folder = checkpoints[2]
    manifest = read_manifest(folder)
    assert {entry.path: (entry.size_bytes, entry.crc32) for entry in manifest.files} == crc32s(folder)
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= {
        entry.path for entry in manifest.files
    }
    assert verify(folder).ok


def test_it_says_what_the_trainer_knew_when_it_saved(checkpoints, guarded):
    # given
    folder, history = checkpoints[4], guarded.trainer.state.log_history
    # when
    manifest = read_manifest(folder)
    # then the figures are those that the trainer has logged and saved itself
    [loss] = [entry["loss"] for entry in history if entry["step"] == 4 and "loss" in entry]
    best = min((entry["eval_loss"], entry["step"]) for entry in history if "eval_loss" in entry and entry["step"] <= 4)
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    assert (manifest.saver, manifest.step, manifest.run_id) == ("transformers", 4, guarded.run.run_id)
    assert (manifest.loss, manifest.facts["loss_step"], manifest.world_size) == (loss, 4, 1)
    assert (manifest.facts["best_metric"], manifest.facts["best_global_step"]) == best
    assert manifest.lr == tuple(group["lr"] for group in optimizer["param_groups"])
    assert (manifest.healthy, manifest.unhealthy_because) == (True, ())
    assert manifest.versions["torch"] == torch.__version__


def test_each_part_is_in_its_files(checkpoints):
    parts = read_manifest(checkpoints[2]).parts
    assert {name: list(files) for name, files in parts.items()} == {
        "model": ["model.safetensors"],
        "optimizer": ["optimizer.pt"],
        "scheduler": ["scheduler.pt"],
        "rng": ["rng_state.pth"],
        "step": ["trainer_state.json"],
        "data": ["trainer_state.json"],
        "loss": ["trainer_state.json"],
        "best_eval": ["trainer_state.json"],
        "guard": ["trimtab_state.json"],
        "recorder": ["trimtab_state.json"],
    }


def test_the_model_alone_is_told_as_a_run_whose_other_parts_are_missing(saved):
    folder, _ = saved(args=dict(save_only_model=True))
    report = verify(folder)
    assert report.ok
    assert report.missing == ("optimizer", "rng", "scheduler")


def test_each_save_in_a_folder_has_the_next_place_whatever_its_number(checkpoints, guarded, bench, tmp_path):
    # given a run with checkpoints 2, 4, 6 and 8
    assert [read_manifest(folder).serial for folder in checkpoints.values()] == [1, 2, 3, 4]
    out = shutil.copytree(guarded.trainer.args.output_dir, tmp_path / "out")
    # when a fresh run saves into the same folder after step 3
    second = bench.train(dict(args=ARGS | dict(output_dir=str(out), save_steps=3, max_steps=3)), attach={})
    # then
    newest = read_manifest(out / "checkpoint-3")
    assert (newest.serial, newest.run_id) == (5, second.run.run_id)
    assert second.run.run_id != guarded.run.run_id


class ChangesWhatWasSaved(TrainerCallback):
    """As some users do, who leave the adapter alone in a checkpoint."""

    def on_save(self, args, state, control, **_):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        (folder / "training_args.bin").unlink()
        (folder / "note.txt").write_text("mine")


def test_what_others_do_to_a_checkpoint_as_it_is_saved_is_part_of_it(bench):
    # given a callback that is added after attach
    trainer = bench.trainer(dict(args=ARGS))
    trimtab.attach(trainer)
    trainer.add_callback(ChangesWhatWasSaved())
    # when
    trainer.train()
    # then
    folder = Path(trainer.args.output_dir, "checkpoint-2")
    assert verify(folder).ok
    assert "note.txt" in {entry.path for entry in read_manifest(folder).files}


def test_a_checkpoint_that_is_saved_over_an_older_one_gets_a_manifest_of_its_own(saved, bench):
    # given
    folder, _ = saved()
    before = read_manifest(folder)
    # when
    bench.train(dict(args=ARGS | dict(output_dir=str(folder.parent), seed=7)), attach={})
    # then
    after = read_manifest(folder)
    assert after.run_id != before.run_id
    assert verify(folder).ok


def test_the_log_tells_of_each_checkpoint(guarded):
    table = guarded.log.events().numpy()
    told = zip(table["kind"].tolist(), table["facts"].tolist(), strict=True)
    events = [json.loads(facts) for kind, facts in told if kind == "checkpoint"]
    assert events[0] == {"folder": "checkpoint-2", "healthy": True, "verifiable": True}
    assert [event["folder"] for event in events] == [f"checkpoint-{step}" for step in (2, 4, 6, 8)]


def test_a_training_that_was_attached_with_nothing_to_do_gets_none(saved):
    folder, _ = saved(attach=dict(record=False))
    assert not (folder / MANIFEST_NAME).exists()


def test_without_recording_a_guarded_training_gets_one_that_names_no_run(saved):
    folder, _ = saved(attach=dict(record=False, guard=GUARD))
    assert read_manifest(folder).run_id is None
    assert verify(folder).ok


# ------------------------------------------------------------------------------------------------------------- health


class Breaks(TrainerCallback):
    """Makes one weight or one moment of a model infinite after step 3."""

    def __init__(self, what):
        self.what = what

    def on_step_end(self, args, state, control, model, optimizer, **_):
        if state.global_step == 3:
            weight = model.lm_head.weight
            target = weight if self.what == "weight" else optimizer.optimizer.state[weight]["exp_avg"]
            with torch.no_grad():
                target[5, 2] = math.inf


@pytest.mark.parametrize(
    ("what", "told"), [("weight", "model's lm_head.weight"), ("moment", "exp_avg of lm_head.weight")]
)
def test_a_weight_or_moment_that_is_no_number_any_more_makes_a_checkpoint_unhealthy(saved, said, what, told):
    # given one that breaks right before the second checkpoint
    folder, _ = saved(callbacks=[Breaks(what)], step=3, args=dict(save_steps=1, max_steps=3))
    # then
    healthy = [read_manifest(folder.with_name(f"checkpoint-{step}")).healthy for step in (1, 2, 3)]
    assert healthy == [True, True, False]
    [sentence] = read_manifest(folder).unhealthy_because
    assert sentence.startswith(f"{told}: 1 entry is NaN or infinite")
    [line] = [line for line in said() if "is not healthy" in line]
    assert line.startswith(f"{folder} is not healthy: {sentence}")


def test_a_token_without_a_usable_embedding_from_the_start_is_no_illness(bench):
    # given a model with a NaN in its embedding, which no row uses
    model = bench.make_model("llama", nan_embedding=True)
    trained = bench.train(dict(args=ARGS), attach={}, model=model)
    folder = Path(trained.trainer.args.output_dir, "checkpoint-2")
    # then
    manifest = read_manifest(folder)
    assert manifest.healthy
    assert list(manifest.facts["nonfinite_at_start"]) == ["model's model.embed_tokens.weight"]


def test_what_was_no_number_when_the_run_began_is_carried_over_a_resume(bench, said):
    """A run that is resumed from an unhealthy checkpoint by its name stays unhealthy: it did not begin there."""
    # given
    args = ARGS | dict(output_dir=str(bench.folder / "out"))
    bench.train(dict(args=args | dict(max_steps=4)), attach={}, callbacks=[Breaks("weight")])
    folder = Path(args["output_dir"], "checkpoint-4")
    assert not read_manifest(folder).healthy
    # when
    trainer = bench.trainer(dict(args=args))
    trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=str(folder))
    # then
    assert not read_manifest(folder.with_name("checkpoint-8")).healthy
    assert [line for line in said() if "It was named, so the training goes on from it." in line]


# ------------------------------------------------------------------------------------------------- what can go wrong


def test_a_disk_that_refuses_the_manifest_costs_one_line_and_no_step(bench, said, monkeypatch):
    # given
    trainer = bench.trainer(dict(args=ARGS))
    trimtab.attach(trainer)

    def full(path, data):
        path.with_name(path.name + ".new").write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trimtab.resume.describe.write_whole", full)
    # when
    trainer.train()
    # then
    assert trainer.state.global_step == 8
    folder = Path(trainer.args.output_dir, "checkpoint-2")
    assert [line for line in said() if MANIFEST_NAME in line] == [
        f"{folder} has no {MANIFEST_NAME} ({os.strerror(errno.ENOSPC)}): whether its files are whole and its weights "
        "healthy cannot be told later. The training goes on. Said once."
    ]
    assert not [path for path in folder.iterdir() if MANIFEST_NAME in path.name]


def test_the_manifest_comes_last(bench):
    """Killed at any moment before, a checkpoint has none and makes no promise."""
    # given
    found = []

    class Looks(TrainerCallback):
        def on_save(self, args, state, control, **_):
            found.append(Path(args.output_dir, f"checkpoint-{state.global_step}", MANIFEST_NAME).exists())

    trainer = bench.trainer(dict(args=ARGS), callbacks=[Looks()])
    trimtab.attach(trainer)
    # when
    trainer.train()
    # then
    assert found == [False] * 4


def test_what_came_before_a_save_is_in_the_log_by_then(bench):
    """Whoever is killed right after it finds no gap before the checkpoint."""
    # given
    found = {}

    class Looks(TrainerCallback):
        def on_save(self, args, state, control, **_):
            found[state.global_step] = trimtab.open_log(run.folder).step_columns().step.tolist()

    trainer = bench.trainer(dict(args=ARGS), callbacks=[Looks()])
    run = trimtab.attach(trainer)
    # when
    trainer.train()
    # then
    assert found == {step: list(range(1, step + 1)) for step in (2, 4, 6, 8)}


class EndsInSaving(Trainer):
    """Ends after it has written its model over an older one, as a process does that is killed then."""

    def _save_optimizer_and_scheduler(self, output_dir):
        raise KeyboardInterrupt


def test_a_save_that_is_killed_over_an_older_checkpoint_is_given_away_by_the_old_manifest(guarded, bench, tmp_path):
    """transformers writes over the files in place: the model is the new one, the optimizer the old one."""
    # given
    out = shutil.copytree(guarded.trainer.args.output_dir, tmp_path / "out")
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(out), learning_rate=3e-3)), cls=EndsInSaving)
    trimtab.attach(trainer)
    # when
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    # then
    problems = verify(out / "checkpoint-2").problems
    assert [problem for problem in problems if "model.safetensors" in problem]
    assert not [problem for problem in problems if "optimizer.pt" in problem]


def test_a_checkpoint_that_transformers_deletes_as_it_is_saved_is_told(bench, said, tmp_path):
    """What stock transformers 5.24 does where times are too close to tell, as on some network disks: by number."""
    # given
    out = tmp_path / "out"
    (out / "checkpoint-1000").mkdir(parents=True)
    soon = time.time() + 3600
    os.utime(out / "checkpoint-1000", (soon, soon))
    # when
    trained = bench.train(dict(args=ARGS | dict(output_dir=str(out), save_total_limit=1)), attach={})
    # then
    assert trained.trainer.state.global_step == 8
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-1000"]
    [line] = [line for line in said() if "deleted" in line]
    assert line.startswith(f"transformers deleted {out / 'checkpoint-2'} as soon as it was saved")


def test_a_manifest_is_json_that_others_can_read(checkpoints):
    document = json.loads((checkpoints[2] / MANIFEST_NAME).read_text())
    assert document["manifest"]["saver"] == "transformers"
    assert math.isfinite(document["manifest"]["saved_at"])


def test_a_copy_of_a_checkpoint_under_another_number_is_no_checkpoint(checkpoints, tmp_path):
    copy = shutil.copytree(checkpoints[2], tmp_path / "checkpoint-1000")
    assert "copied or renamed" in verify(copy).problems[0]
