"""From `attach` to the last line: what is hooked, recorded, said, and put back; what an exception leaves behind."""

import json
import threading
import warnings

import pytest
import torch
from transformers import LlamaForCausalLM, TrainerCallback

import trimtab
from trimtab import GuardConfig, UsageError
from trimtab.log.folder import run_folders
from trimtab.registry import runs

GUARD = GuardConfig(multiplier=3.0)


def same_weights(found, expected):
    return all(torch.equal(found.weights[name], value) for name, value in expected.weights.items())


def hooks(trainer):
    """What stands on the instances instead of on their classes."""
    return set(vars(trainer)) & {"get_train_dataloader", "training_step", "compute_loss", "train"}


# ---------------------------------------------------------------------------------------------------------- attaching


def test_attaching_twice_is_refused(bench):
    trainer = bench.trainer()
    trimtab.attach(trainer)
    with pytest.raises(UsageError, match="attached to this trainer already"):
        trimtab.attach(trainer)


def test_switched_off_it_does_nothing_and_says_so_once(bench, said, monkeypatch):
    # given
    monkeypatch.setenv("TRIMTAB", "off")
    plain = bench.train()
    # when it is attached, even twice
    trainer = bench.trainer()
    for _ in range(2):
        run = trimtab.attach(trainer, guard=GUARD)
    trainer.train()
    # then
    assert not hooks(trainer)
    assert run.folder is None
    assert run_folders(trainer.args.output_dir) == []
    assert said() == ["Trimtab does nothing: TRIMTAB=off is set in the environment."]
    assert all(torch.equal(value, plain.weights[name]) for name, value in trainer.model.state_dict().items())


def test_without_recording_there_is_no_folder_no_entry_and_no_thread(bench):
    # given
    threads = threading.active_count()
    seen = []

    class Counts(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            seen.append(threading.active_count())

    # when
    trained = bench.train(attach=dict(record=False, guard=GUARD), callbacks=[Counts()])
    # then
    assert set(seen) == {threads}
    assert trained.run.folder is None
    assert run_folders(trained.trainer.args.output_dir) == []
    assert runs() == []


def test_with_nothing_to_do_nothing_is_hooked(bench):
    trainer = bench.trainer()
    trimtab.attach(trainer, record=False)
    assert not hooks(trainer)


def test_several_devices_in_one_process_are_refused(bench):
    trainer = bench.trainer()
    trainer.args._n_gpu = 2
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES"):
        trimtab.attach(trainer)


@pytest.mark.parametrize(
    "verb",
    [
        lambda run: run.micro_batch(torch.zeros(1, 1), rows=[0]),
        lambda run: run.step(),
        lambda run: run.begin_window(100),
        lambda run: run.window_open,
        lambda run: run.window_complete,
        lambda run: run.load_state_dict(run.state_dict()),
    ],
    ids=["micro_batch", "step", "begin_window", "window_open", "window_complete", "load_state_dict"],
)
def test_the_verbs_of_a_loop_of_ones_own_are_the_trainers_here(bench, verb):
    run = trimtab.attach(bench.trainer())
    with pytest.raises(UsageError, match=r"trainer\.train"):
        verb(run)


def test_the_first_line_says_what_it_does(bench, said):
    trimtab.attach(bench.trainer())
    trimtab.attach(bench.trainer(), guard=GuardConfig(rule="robust"))
    assert "nothing is ever skipped" in said()[0]
    assert "guard (robust)" in said()[1]


# ------------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize(("fault", "bad_steps"), [("costly", ()), ("nan", (4,)), ("costly", (4, 6))])
def test_the_last_line_counts_the_findings_and_names_the_next_command(bench, said, fault, bad_steps):
    rows = bench.train().probe.rows
    trained = bench.train(attach={}, faults={fault: [rows[step][0][0] for step in bad_steps]})
    num_findings = len(trimtab.rewind(trained.run.folder).spikes)
    assert (num_findings > 0) == (len(bad_steps) > 0)
    words = "1 finding" if num_findings == 1 else f"{num_findings} findings"
    assert said()[-1] == f"{words}: trimtab rewind {trained.run.run_id}"


def test_a_log_that_cannot_be_read_does_not_spoil_the_training(bench, said, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such column")

    monkeypatch.setattr("trimtab.integrations.ending.rewind_log", broken)
    trained = bench.train(attach={})
    assert trained.trainer.state.global_step == 7
    assert "no such column" in said()[-1]


def test_a_folder_that_cannot_be_written_does_not_spoil_the_training(bench, said, tmp_path):
    # given
    plain = bench.train()
    (tmp_path / "file").write_text("in the way")
    # when
    trained = bench.train(attach=dict(out=tmp_path / "file"))
    # then
    assert same_weights(trained, plain)
    assert len([line for line in said() if line.startswith("Trimtab recorder off")]) == 1


# ------------------------------------------------------------------------------------------------------ what is logged


def test_the_header_tells_what_was_trained(bench):
    args = dict(gradient_accumulation_steps=2, run_name="small")
    header = bench.train(dict(data="hf", args=args), attach={}).log.header
    assert (header.backend, header.task) == ("transformers", "ForCausalLM")
    assert (header.num_rows, header.batch_size, header.accumulation) == (13, 2, 2)
    assert header.experiment == "small"
    assert header.row_index == "index into the dataset handed to the trainer"
    assert len(header.dataset_fingerprint) == 64


def test_the_header_tells_how_the_rows_of_a_stream_are_numbered(bench):
    setting = dict(data="numbered_stream", args=dict(max_steps=2))
    header = bench.train(setting, attach=dict(row_id="number")).log.header
    assert header.num_rows is None
    assert header.row_index.startswith("column 'number' of the stream where it holds integers, else worker << 40")


def test_evaluations_and_checkpoints_are_events_of_the_step_after_which_they_came(bench):
    # when
    args = dict(save_strategy="steps", save_steps=3, eval_on_start=True)
    trained = bench.train(dict(evaluate=True, args=args), attach={})
    # then
    events = trained.log.event_list()
    evaluations = [(event.step, event.facts["loss"]) for event in events if event.kind == "evaluation"]
    logged = [(entry["step"], entry["eval_loss"]) for entry in trained.logged if "eval_loss" in entry]
    assert sum(evaluations, ()) == pytest.approx(sum(logged, ()))
    assert [step for step, _ in evaluations][:4] == [0, 2, 4, 6]
    saved = [(event.step, event.facts["folder"]) for event in events if event.kind == "checkpoint"]
    assert saved == [(3, "checkpoint-3"), (6, "checkpoint-6"), (7, "checkpoint-7")]
    assert [event.facts for event in events if event.kind == "end"] == [{"reason": "closed"}]


def test_an_evaluation_beside_a_training_is_not_recorded(bench):
    trainer = bench.trainer(dict(evaluate=True))
    run = trimtab.attach(trainer)
    trainer.evaluate()
    assert run.folder is None


def test_a_loader_that_the_user_asks_for_is_the_users(bench):
    trainer = bench.trainer()
    trimtab.attach(trainer)
    assert set(next(iter(trainer.get_train_dataloader()))) == {"input_ids", "labels", "attention_mask"}


# ----------------------------------------------------------------------------------------------- several runs, resuming


def test_a_folder_that_holds_other_runs_keeps_them(bench, tmp_path):
    # given a run in the folder
    first = bench.train(attach=dict(out=tmp_path / "runs"))
    before = {path: path.read_bytes() for path in first.run.folder.rglob("*") if path.is_file()}
    # when another is recorded there
    second = bench.train(attach=dict(out=tmp_path / "runs"))
    # then
    assert set(run_folders(tmp_path / "runs")) == {first.run.folder, second.run.folder}
    assert {path: path.read_bytes() for path in first.run.folder.rglob("*") if path.is_file()} == before
    assert trimtab.rewind(second.run.folder).num_steps == 7


@pytest.mark.parametrize("attach", [{}, dict(run_id="mine"), dict(guard=GUARD), dict(guard=GUARD, record=False)])
def test_a_second_training_is_a_run_of_its_own(bench, said, attach):
    # given two trainings with one trainer, without Trimtab
    plain = bench.trainer()
    plain.train()
    plain.train()
    # when
    trainer = bench.trainer()
    run = trimtab.attach(trainer, **attach)
    trainer.train()
    first, first_id = run.folder, run.run_id
    trainer.train()
    # then
    for name, value in plain.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value)
    assert not [line for line in said() if "went back" in line]
    if attach.get("record", True):
        assert run.run_id != first_id
        for folder in (first, run.folder):
            log = trimtab.open_log(folder)
            assert log.step_columns().step.tolist() == list(range(1, 8))
            assert set(log.step_columns().attempt.tolist()) == {1}


def test_a_named_run_is_continued_as_its_next_attempt(bench, tmp_path):
    for _ in range(2):
        trained = bench.train(attach=dict(out=tmp_path / "runs", run_id="mine"))
    assert run_folders(tmp_path / "runs") == [tmp_path / "runs/trimtab/mine"]
    assert set(trained.log.step_columns().attempt.tolist()) == {1, 2}
    assert trimtab.rewind(trained.run.folder).num_steps == 7


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_resumed_training_goes_on_with_the_right_steps_and_rows(bench, workers):
    # given a training that is not interrupted, and its checkpoint after step 3
    args = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=3)
    setting = dict(args=dict(args, dataloader_num_workers=workers))
    whole = bench.train(setting, attach={})
    checkpoint = f"{whole.trainer.args.output_dir}/checkpoint-3"
    # when another trainer goes on from there
    trainer = bench.trainer(setting)
    run = trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    # then
    for name, value in whole.weights.items():
        assert torch.equal(trainer.model.state_dict()[name], value)
    resumed, expected = trimtab.open_log(run.folder), whole.recorded_rows()
    assert resumed.step_columns().step.tolist() == [4, 5, 6, 7, 8]
    for block in resumed.row_blocks():
        for step in (4, 5, 6, 7, 8):
            assert block.row[block.step == step].tolist() == [row for micro in expected[step] for row in micro]


# ------------------------------------------------------------------------------------------------------------- the end


class Stops(TrainerCallback):
    def __init__(self, error):
        self.error = error

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 5:
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError("a user's callback"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_closes_the_log_and_goes_on_unchanged(bench, said, error):
    # given
    bad = bench.train().probe.rows[4][0][0]
    threads = threading.active_count()
    trainer = bench.trainer(dict(args=dict(label_smoothing_factor=0.1)), faults=dict(costly=[bad]))
    run = trimtab.attach(trainer)
    trainer.add_callback(Stops(error))
    smoother = trainer.label_smoother
    # when
    with pytest.raises(type(error)) as caught:
        trainer.train()
    # then
    assert caught.value is error
    assert threading.active_count() == threads
    assert trainer.label_smoother is smoother
    log = trimtab.open_log(run.folder)
    assert [event.facts for event in log.event_list() if event.kind == "end"] == [{"reason": type(error).__name__}]
    assert log.notices() == []
    assert trimtab.rewind(run.folder).rows[0].row == bad
    assert said()[-1].endswith(f": trimtab rewind {run.run_id}")


def test_a_training_that_never_began_leaves_nothing(bench):
    trainer = bench.trainer()
    run = trimtab.attach(trainer)
    with pytest.raises(ValueError, match="No valid checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    assert run.folder is None


def test_a_refused_training_says_nothing_of_the_run_before_it(bench, said):
    # given a training that went well
    trainer = bench.trainer()
    run = trimtab.attach(trainer)
    trainer.train()
    last = f": trimtab rewind {run.run_id}"
    assert said()[-1].endswith(last)
    # when the next one is refused before it begins
    with pytest.raises(ValueError, match="Can't find a valid checkpoint"):
        trainer.train(resume_from_checkpoint="nowhere")
    # then the run that it did not touch is told of once
    assert sum(line.endswith(last) for line in said()) == 1


def test_everything_is_put_back_after_training(bench):
    # given
    setting = dict(loss_func="token mean", args=dict(label_smoothing_factor=0.1))
    trainer = bench.trainer(setting)
    model, clip = trainer.model, trainer.accelerator.clip_grad_norm_
    smoother, function = trainer.label_smoother, trainer.compute_loss_func
    trimtab.attach(trainer)
    # when
    trainer.train()
    # then
    assert trainer.label_smoother is smoother
    assert trainer.compute_loss_func is function
    assert trainer.accelerator.clip_grad_norm_ == clip
    assert "_loss_function" not in vars(model)
    assert model.loss_function is LlamaForCausalLM.loss_function.fget(bench.make_model("llama"))


def test_a_loss_function_of_the_users_own_is_put_back(bench):
    # given
    def function(logits, labels, vocab_size, num_items_in_batch=None, **_):
        from transformers.loss.loss_utils import ForCausalLMLoss

        return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch)

    trainer = bench.trainer()
    trainer.model.loss_function = function
    run = trimtab.attach(trainer)
    # when
    trainer.train()
    # then
    assert trainer.model.loss_function is function
    assert trimtab.rewind(run.folder, step=1).rows[0].tokens > 0


def test_a_checkpoint_during_training_is_the_trainers_own(bench, tmp_path):
    from safetensors import safe_open

    # given
    setting = dict(args=dict(save_strategy="steps", save_steps=3))
    folders = []
    for attach in (None, dict(guard=GUARD)):
        trained = bench.train(setting, attach=attach)
        folders.append(tmp_path / trained.trainer.args.output_dir / "checkpoint-3")
    # then the files are the same ones beside those of the run, with the same tensors and settings
    plain, ours = folders
    added = {"trimtab_state.json", "trimtab_manifest.json"}
    assert {path.name for path in ours.iterdir()} == {path.name for path in plain.iterdir()} | added
    with safe_open(plain / "model.safetensors", "pt") as a, safe_open(ours / "model.safetensors", "pt") as b:
        assert a.keys() == b.keys()
        assert a.metadata() == b.metadata()
        assert all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in a.keys())  # noqa: SIM118
    assert json.loads((ours / "config.json").read_text()) == json.loads((plain / "config.json").read_text())
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in folders]
    assert states[0].keys() == states[1].keys()
    assert states[0]["stateful_callbacks"].keys() == states[1]["stateful_callbacks"].keys()


class SavesItself(TrainerCallback):
    def __init__(self, folder):
        self.folder = folder

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step == 2:
            model.save_pretrained(self.folder)


def test_a_model_saved_by_a_callback_can_be_loaded(bench, tmp_path):
    bench.train(attach={}, callbacks=[SavesItself(tmp_path / "model")])
    with warnings.catch_warnings(action="ignore"):  # our lm_head has a bias that the class does not know
        loaded = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert not isinstance(loaded.loss_function, trimtab.torch.capture.CapturingLoss)
