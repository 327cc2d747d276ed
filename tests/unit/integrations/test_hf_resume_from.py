"""Which checkpoint a Trainer may go on from: whole, complete, healthy, of the run that is meant; and at which rate."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

import trimtab
from trimtab.errors import CheckpointError
from trimtab.resume.manifest import MANIFEST_NAME, ResumedFrom, read_manifest
from trimtab.resume.select import pick

ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=2)
NEWEST = "checkpoint-8"


@pytest.fixture(scope="module")
def whole(trained_once):
    """The folder of a training with four checkpoints, 2 to 8; for looking at only."""
    return Path(trained_once.train(dict(args=ARGS), attach={}).trainer.args.output_dir)


@pytest.fixture
def out(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "out")


@pytest.fixture
def resume(bench):
    """Builds the trainer anew, attaches and resumes; gives the trainer."""

    def resume(folder, which=True, *, attach=None, **args):
        trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(folder), num_train_epochs=3) | args))
        trimtab.attach(trainer, **(attach or {}))
        trainer.train(resume_from_checkpoint=which)
        return trainer

    return resume


def flip(path, *, at=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def call(folder):
    return f"trainer.train(resume_from_checkpoint={str(folder)!r})"


# -------------------------------------------------------------------------------------------------------------- damage


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "a bit flipped in a weight": lambda folder: flip(folder / "model.safetensors", at=-40),
    "a bit flipped in a moment": lambda folder: flip(folder / "optimizer.pt"),
    "truncated": lambda folder: cut(folder / "model.safetensors"),
    "empty": lambda folder: (folder / "optimizer.pt").write_bytes(b""),
    "missing": lambda folder: (folder / "scheduler.pt").unlink(),
    "another step in the manifest": lambda folder: flip(folder / MANIFEST_NAME),
    "no manifest but half of one": lambda folder: cut(folder / MANIFEST_NAME),
    "a line changed in the trainer's state": lambda folder: flip(folder / "trainer_state.json"),
}


@pytest.mark.parametrize(("kind", "named"), [*((kind, False) for kind in DAMAGE), ("truncated", True)])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(out, bench, kind, named):
    # given
    DAMAGE[kind](out / NEWEST)
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(out))))
    trimtab.attach(trainer)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    # when
    with pytest.raises(CheckpointError) as caught:
        trainer.train(resume_from_checkpoint=str(out / NEWEST) if named else True)
    # then nothing was loaded, and it says where, and what to do
    told = str(caught.value)
    assert str(out / NEWEST) in told
    assert told.endswith(f"Nothing was loaded. The last healthy one is checkpoint-6: {call(out / 'checkpoint-6')}.")
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_the_one_that_was_named_instead_is_gone_on_from(out, resume):
    flip(out / NEWEST / "model.safetensors", at=-40)
    trainer = resume(out, str(out / "checkpoint-6"))
    assert trainer.state.global_step == 12


def test_where_no_other_is_whole_it_says_so(out, resume):
    for folder in out.glob("checkpoint-*"):
        flip(folder / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"No other checkpoint beside it is whole: begin anew, or copy it again"):
        resume(out)


def test_a_hostile_path_in_a_message_reaches_no_terminal(bench, tmp_path, resume):
    # given
    folder = tmp_path / "out\x1b[31m"
    bench.train(dict(args=ARGS | dict(output_dir=str(folder))), attach={})
    flip(folder / NEWEST / "optimizer.pt")
    # when
    with pytest.raises(CheckpointError) as caught:
        resume(folder)
    # then
    assert "\x1b" not in str(caught.value)


# ----------------------------------------------------------------------------------------- incomplete, or no manifest


def test_the_model_alone_is_refused_with_the_parts_named_and_what_it_is_good_for(bench, resume, tmp_path):
    """Stock transformers 5.24 would load the weights and the step, and begin optimizer and schedule anew."""
    out = tmp_path / "out"
    bench.train(dict(args=ARGS | dict(output_dir=str(out), save_only_model=True)), attach={})
    with pytest.raises(CheckpointError) as caught:
        resume(out)
    told = str(caught.value)
    assert told.startswith(f"{out / NEWEST} has no optimizer and scheduler, as save_only_model=True leaves it")
    assert "load them with from_pretrained" in told


def test_a_checkpoint_without_a_manifest_is_gone_on_from_with_one_line(out, resume, said):
    (out / NEWEST / MANIFEST_NAME).unlink()
    trainer = resume(out)
    assert trainer.state.global_step == 12
    [line] = [line for line in said() if f"has no {MANIFEST_NAME}" in line]
    assert line.startswith(
        f"{out / NEWEST} has no {MANIFEST_NAME}: it was saved without Trimtab, or its save was cut off"
    )


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "trainer_state.json"])
def test_a_save_that_was_killed_half_way_is_refused(out, resume, file):
    """Stock transformers 5.24 takes the highest number: without optimizer.pt it goes on with a new one in silence."""
    (out / NEWEST / MANIFEST_NAME).unlink()
    (out / NEWEST / file).unlink()
    with pytest.raises(CheckpointError, match=r"The last healthy one is checkpoint-6: trainer\.train\("):
        resume(out)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_without_random_numbers_it_has_to_be_named_whether_or_not_there_is_a_manifest(out, resume, said, has_manifest):
    """Stock transformers 5.24 goes on with whatever the process has drawn so far."""
    # given
    folder = out / NEWEST
    (folder / "rng_state.pth").unlink()
    if not has_manifest:
        (folder / MANIFEST_NAME).unlink()
    # when
    with pytest.raises(CheckpointError) as caught:
        resume(out)
    trainer = resume(out, str(folder))
    # then
    told = str(caught.value)
    assert told.startswith(f"{folder} lacks random numbers: what goes on is not bit-identical")
    assert f"The last healthy one is checkpoint-6: {call(out / 'checkpoint-6')}." in told
    assert told.endswith(f"To go on from it all the same, name it: {call(folder)}.")
    assert trainer.state.global_step == 12
    [line] = [line for line in said() if "not bit-identical" in line]
    assert line.endswith("It was named, so the training goes on from it.")


def test_random_numbers_that_are_damaged_are_refused_also_where_they_are_named(out, resume):
    flip(out / NEWEST / "rng_state.pth")
    with pytest.raises(CheckpointError, match=r"is damaged: rng_state\.pth"):
        resume(out, str(out / NEWEST))


def test_a_truncated_file_is_seen_without_a_manifest_too(out, resume):
    (out / NEWEST / MANIFEST_NAME).unlink()
    cut(out / NEWEST / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        resume(out)


def test_names_that_only_look_like_a_checkpoint_are_not_taken(out, resume):
    shutil.copytree(out / "checkpoint-2", out / "checkpoint-1000_backup")
    shutil.copytree(out / "checkpoint-2", out / "checkpoint-2000.tmp")
    (out / "checkpoint-3000").write_text("no folder")
    assert resume(out).state.global_step == 12


# ---------------------------------------------------------------------------------------------------- health, and runs


class Breaks(TrainerCallback):
    def on_step_end(self, args, state, control, model, **_):
        if state.global_step == 5:
            with torch.no_grad():
                model.lm_head.weight[5, 2] = float("nan")


@pytest.fixture(scope="module")
def broken(trained_once):
    return Path(trained_once.train(dict(args=ARGS), attach={}, callbacks=[Breaks()]).trainer.args.output_dir)


@pytest.fixture
def sick(broken, tmp_path):
    """Checkpoints 2 to 8, healthy up to 4."""
    return shutil.copytree(broken, tmp_path / "sick")


def test_a_plain_resume_onto_an_unhealthy_checkpoint_is_refused_with_the_last_healthy_one_named(sick, resume):
    with pytest.raises(CheckpointError) as caught:
        resume(sick)
    told = str(caught.value)
    assert told.startswith(f"{sick / NEWEST} is not healthy: ")
    assert f"The last healthy one is checkpoint-4: {call(sick / 'checkpoint-4')}." in told
    assert told.endswith(f"To go on from it all the same, name it: {call(sick / NEWEST)}.")


def test_a_checkpoint_that_is_refused_was_not_loaded_before(sick, bench):
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(sick), num_train_epochs=3)))
    trimtab.attach(trainer)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="is not healthy"):
        trainer.train(resume_from_checkpoint=True)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert trainer.state.global_step == 0


def test_naming_a_checkpoint_overrides_its_health_with_a_warning(sick, resume, said):
    trainer = resume(sick, str(sick / NEWEST))
    assert trainer.state.global_step == 12
    assert len([line for line in said() if line.startswith(f"{sick / NEWEST} is not healthy: ")]) == 1


def test_naming_does_not_override_damage(sick, resume):
    flip(sick / NEWEST / "optimizer.pt")
    with pytest.raises(CheckpointError, match="is damaged"):
        resume(sick, str(sick / NEWEST))


def test_the_highest_number_of_an_older_run_is_not_taken_for_the_newest(bench, out, resume):
    # given an old run's checkpoint-8, and a fresh run that has come to checkpoint-3
    fresh = bench.train(dict(args=ARGS | dict(output_dir=str(out), save_steps=3, max_steps=3)), attach={})
    # when
    with pytest.raises(CheckpointError) as caught:
        resume(out)
    # then
    told = str(caught.value)
    assert f"the newest run in its folder is {fresh.run.run_id}, whose newest checkpoint is checkpoint-3" in told
    assert call(out / "checkpoint-3") in told
    assert call(out / NEWEST) in told
    assert resume(out, str(out / NEWEST)).state.global_step == 12


def test_a_checkpoint_that_its_run_was_taken_back_behind_is_not_taken_for_the_newest(out, resume):
    # given a run that went on from its checkpoint-2, and has come to checkpoint-3 again
    resume(out, str(out / "checkpoint-2"), save_steps=3, max_steps=3)
    assert read_manifest(out / "checkpoint-3").resumed_from == ResumedFrom(step=2, serial=4)
    assert pick(out).path == out / "checkpoint-3"
    # when
    with pytest.raises(CheckpointError) as caught:
        resume(out)
    # then
    told = str(caught.value)
    assert told.startswith(f"{out / NEWEST} has the highest number and its run was taken back to an earlier step since")
    assert told.endswith(f"Name the one that is meant: {call(out / 'checkpoint-3')}, or {call(out / NEWEST)}.")
    assert resume(out, str(out / "checkpoint-3")).state.global_step == 12


def test_a_run_that_went_on_from_its_newest_checkpoint_is_gone_on_from_again(out, resume):
    resume(out, max_steps=10)
    assert read_manifest(out / "checkpoint-10").resumed_from == ResumedFrom(step=8, serial=4)
    assert resume(out).state.global_step == 12


def test_a_run_that_goes_on_in_another_folder_counts_that_ones_saves(out, resume, tmp_path):
    other = tmp_path / "other"
    resume(other, str(out / NEWEST), max_steps=10)
    assert read_manifest(other / "checkpoint-10").resumed_from == ResumedFrom(step=8, serial=0)
    assert read_manifest(out / NEWEST).resumed_from is None


# -------------------------------------------------------------------------------------------------------- learning rate


FURTHER_SCHEDULES = [
    pytest.param(kind, marks=pytest.mark.long)
    for kind in ("linear", "constant_with_warmup", "cosine_with_restarts", "polynomial")
]


def rates(trainer):
    return {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}


@pytest.mark.parametrize("kind", ["cosine", *FURTHER_SCHEDULES])
def test_the_rate_on_resume_is_that_of_a_training_that_had_it_from_the_start(bench, out, resume, said, kind):
    # given the same schedule at 3e-4, and at 1e-3 up to a checkpoint
    args = dict(lr_scheduler_type=kind, num_train_epochs=3, warmup_steps=3)
    args |= dict(lr_scheduler_kwargs={"power": 1.0, "lr_end": 0.0}) if kind == "polynomial" else {}
    expected = rates(bench.train(dict(args=ARGS | args | dict(learning_rate=3e-4))).trainer)
    first = bench.folder / "first"
    bench.train(dict(args=ARGS | args | dict(output_dir=str(first))), attach={})
    # when
    trainer = resume(first, str(first / "checkpoint-4"), attach=dict(lr_on_resume=3e-4), **args)
    # then
    found = rates(trainer)
    for step in range(6, 13):
        assert found[step] == pytest.approx(expected[step], rel=1e-12), step
    assert [line for line in said() if "re-base" in line] == [
        "LR re-base: 1e-03 -> 3e-04 on resume (schedule phase preserved)"
    ]


def test_a_re_base_is_written_into_the_log(out, resume):
    trainer = resume(out, attach=dict(lr_on_resume=3e-4))
    run = vars(trainer)["trimtab_run"]
    table = trimtab.open_log(run.folder).events().numpy()
    told = zip(table["kind"].tolist(), table["facts"].tolist(), strict=True)
    assert [json.loads(facts) for kind, facts in told if kind == "lr_rebase"] == [{"old": 1e-3, "new": 3e-4}]


def test_an_asked_rate_that_resume_does_not_use_is_told_in_one_line(out, resume, said):
    trainer = resume(out, str(out / "checkpoint-4"), learning_rate=1e-5)
    assert rates(trainer)[6] > 1e-4
    assert [line for line in said() if "keeps" in line] == [
        "resume keeps 1e-03; pass lr_on_resume=1e-05 to trimtab.attach to use 1e-05."
    ]


def test_the_rate_of_an_optimizer_of_the_users_own_is_the_one_that_counts(bench, out, said):
    """`TrainingArguments.learning_rate` says nothing then."""
    # given
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(out), num_train_epochs=3, learning_rate=7e-7)))
    groups = trainer.get_decay_parameter_names(trainer.model)
    named = dict(trainer.model.named_parameters())
    parts = [[named[n] for n in named if n in groups], [named[n] for n in named if n not in groups]]
    trainer.optimizer = torch.optim.AdamW([dict(params=part) for part in parts], lr=1e-3)
    trimtab.attach(trainer)
    # when
    trainer.train(resume_from_checkpoint=True)
    # then
    assert not [line for line in said() if "keeps" in line]


def test_the_same_rate_is_not_told(out, resume, said):
    resume(out)
    assert not [line for line in said() if "keeps" in line or "re-base" in line]


def test_a_rate_on_resume_has_no_effect_on_a_training_that_begins_anew(bench):
    trainer = bench.trainer()
    trimtab.attach(trainer, lr_on_resume=3e-4)
    with pytest.warns(trimtab.TrimtabWarning, match=r"lr_on_resume=0\.0003 has no effect on a training that begins"):
        trainer.train()
    assert rates(trainer)[1] == 1e-3


def test_it_works_where_nothing_else_is_asked_for(out, resume):
    trainer = resume(out, str(out / "checkpoint-4"), attach=dict(record=False, lr_on_resume=3e-4))
    assert rates(trainer)[6] < 3e-4


@pytest.mark.parametrize("wrong", [0.0, -1e-4, float("nan"), float("inf"), True, "3e-4"])
def test_what_is_no_rate_is_refused_at_once(bench, wrong):
    with pytest.raises(trimtab.UsageError, match="learning rate"):
        trimtab.attach(bench.trainer(), lr_on_resume=wrong)
