"""Trainers that die, and go on: a process that is killed, and two ranks under DDP. What was decided before is not
decided anew, and what comes after is what would have come; what one rank cannot go on from, none does."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab.analysis.same_bits import compare_logs_bits, open_named
from trimtab.resume.manifest import read_manifest
from trimtab.resume.verify import verify

GUARD = dict(multiplier=3.0)
STATE = "trimtab_state.json"


def decided(folder):
    """(step, rank, micro, row) -> verdict, of each step as its last attempt has it."""
    table = trimtab.open_log(folder).rows().numpy()
    names = ("attempt", "step", "rank", "micro", "row", "verdict")
    found = {}
    for attempt, *place, verdict in sorted(zip(*(table[name].tolist() for name in names), strict=True)):
        found[tuple(place)] = (attempt, verdict)
    return found


# -------------------------------------------------------------------------------------------------- one that is killed

# A row of nothing but token 99 costs about 20 times what the others do. Step 5, the first one after the checkpoint, is
# made of two such rows.
TRAINING = """
import os, signal, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
import trimtab

class Dies(TrainerCallback):
    def on_substep_end(self, args, state, control, **_):
        if state.global_step == 5:
            # A kill takes what was recorded in the last second; what is compared must be written.
            while 5 not in trimtab.open_log(run.folder).step_columns().step:
                pass
            os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **sizes))
model.lm_head = torch.nn.Linear(16, 100)
with torch.no_grad():
    model.lm_head.bias[99] = -100.0
generator = torch.Generator().manual_seed(1)
rows = [dict(input_ids=torch.randint(0, 99, (6,), generator=generator).tolist()) for _ in range(16)]
for row in (8, 9, 13):
    rows[row]["input_ids"][1:] = [99] * 5
def collate(items):
    tokens = torch.tensor([item["input_ids"] for item in items])
    return dict(input_ids=tokens, labels=tokens)
out, what, workers = sys.argv[1:]
arguments = TrainingArguments(
    output_dir=out, per_device_train_batch_size=1, gradient_accumulation_steps=2, num_train_epochs=1, save_steps=4,
    save_strategy="steps", logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    learning_rate=1e-2, train_sampling_strategy="sequential", dataloader_num_workers=int(workers),
)
callbacks = [Dies()] if what == "dies" else []
trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=callbacks)
run = trimtab.attach(trainer, guard=trimtab.GuardConfig(multiplier=3.0))
trainer.train(resume_from_checkpoint=what == "goes on")
optimizer = trainer.optimizer.state_dict()
torch.save(dict(weights=model.state_dict(), optimizer=optimizer, folder=str(run.folder)), out + "/end.pt")
"""


def same_bits(one, other):
    return compare_logs_bits(open_named(one), open_named(other)).same


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_killed_training_goes_on_as_the_one_that_was_not(tmp_path, workers):
    # given
    program = tmp_path / "training.py"
    program.write_text(TRAINING)

    def train(out, what):
        command = [sys.executable, program, tmp_path / out, what, workers]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    # when
    whole, dead, second = train("whole", "is whole"), train("parts", "dies"), train("parts", "goes on")
    # then
    assert (whole.returncode, dead.returncode, second.returncode) == (0, -signal.SIGKILL, 0), second.stderr
    expected, found = (torch.load(tmp_path / out / "end.pt", weights_only=True) for out in ("whole", "parts"))
    assert all(torch.equal(value, expected["weights"][name]) for name, value in found["weights"].items())
    moments, all_moments = found["optimizer"]["state"], expected["optimizer"]["state"]
    assert all(torch.equal(value, all_moments[n][key]) for n, held in moments.items() for key, value in held.items())
    assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert same_bits(found["folder"], expected["folder"])
    verdicts, all_verdicts = decided(found["folder"]), decided(expected["folder"])
    for step in range(5, 9):
        own = {place: told for place, told in verdicts.items() if place[0] == step}
        assert own == {place: (2, verdict) for place, (_, verdict) in all_verdicts.items() if place[0] == step}
        assert ("spike" in [verdict for _, verdict in own.values()]) is (step in (5, 7))
    assert len(list((tmp_path / "parts" / "trimtab").iterdir())) == 1


# ----------------------------------------------------------------------------------------------------------- two ranks


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("trainers_of_a_rank.py"))


SAVED_AT = 3
TWICE = dict(num_train_epochs=2, save_strategy="steps", save_steps=SAVED_AT)


@pytest.fixture
def train(pair, tmp_path):
    def train(name, *, out, call="train", **settings):
        settings = dict(attach=dict(guard=GUARD)) | TWICE | settings
        return pair.call(call, out=str(tmp_path / out), name=name, **settings)

    return train


def bad_document(planned):
    """A document of rank 1 alone, in the first micro-batch after the checkpoint."""
    return planned[1]["seen"][SAVED_AT][0][0]


@pytest.mark.parametrize("kind", ["hf", pytest.param("sft", marks=pytest.mark.long)])
def test_two_ranks_go_on_as_one(pair, train, kind, tmp_path):
    # given
    setting = dict(kind=kind, faults=dict(costly=[bad_document(train("plan", out="plan", kind=kind))]))
    whole = train("whole", out="whole", **setting)
    first = train("first", out="parts", ends_after=SAVED_AT, **setting)
    assert [path.parent.name for path in (tmp_path / "parts").glob(f"*/{STATE}")] == [f"checkpoint-{SAVED_AT}"]
    # when
    second = train("second", out="parts", resume=[True, True], **setting)
    # then
    assert pair.call("ranks_differ", found="second") == [0.0, 0.0]
    assert max(pair.call("compare", found="second", expected="whole")) == 0.0
    assert [rank["folder"] for rank in second] == [rank["folder"] for rank in first]
    verdicts, all_verdicts = decided(second[0]["folder"]), decided(whole[0]["folder"])
    assert {place: verdict for place, (_, verdict) in verdicts.items()} == {
        place: verdict for place, (_, verdict) in all_verdicts.items()
    }
    skipped = {place[:3] for place, (_, verdict) in verdicts.items() if verdict == "spike"}
    assert skipped >= {(SAVED_AT + 1, rank, 0) for rank in range(2)}
    assert {attempt for place, (attempt, _) in verdicts.items() if place[0] > SAVED_AT} == {2}


def test_a_rank_that_finds_another_state_ends_the_training_of_all(train, tmp_path):
    """Where each machine has a disk of its own, and the file was copied to one of them only."""
    # given
    train("first", out="parts", ends_after=SAVED_AT)
    checkpoint = tmp_path / "parts" / f"checkpoint-{SAVED_AT}"
    without = shutil.copytree(checkpoint, tmp_path / "other" / checkpoint.name)
    (without / STATE).unlink()
    # when
    refused = train("second", out="parts", resume=[str(checkpoint), str(without)], call="refused")
    # then
    for rank, (told, num_losses) in enumerate(zip(refused, (6, 0), strict=True)):
        assert f"rank {rank} has history='{num_losses} losses" in told
        assert "load a saved state on every rank or on none" in told


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ends_after", [1, 4, 6])
def test_two_ranks_that_are_interrupted_at_any_step_go_on_as_one(pair, train, tmp_path, ends_after, workers):
    # given: without a guard, saved after every step
    setting = dict(attach={}, save_steps=1, dataloader_num_workers=workers)
    whole = train("whole", out="whole", **setting)
    train("first", out="parts", ends_after=ends_after, **setting)
    # when
    second = train("second", out="parts", resume=[True, True], **setting)
    # then
    assert pair.call("ranks_differ", found="second") == [0.0, 0.0]
    assert max(pair.call("compare", found="second", expected="whole")) == 0.0
    assert same_bits(second[0]["folder"], whole[0]["folder"])
    for rank in range(2):
        assert second[rank]["seen"] == whole[rank]["seen"][ends_after:]
        assert second[rank]["rates"] == whole[rank]["rates"][ends_after:]
        assert second[rank]["logged"] == whole[rank]["logged"]


def test_two_ranks_describe_the_files_of_both(train, tmp_path):
    train("first", out="parts", ends_after=SAVED_AT)
    checkpoint = tmp_path / "parts" / f"checkpoint-{SAVED_AT}"
    manifest = read_manifest(checkpoint)
    assert manifest.parts["rng"] == ("rng_state_0.pth", "rng_state_1.pth")
    assert (manifest.world_size, manifest.healthy) == (2, True)
    assert verify(checkpoint).ok


def test_a_damaged_checkpoint_is_refused_by_both_ranks_with_the_same_words(train, tmp_path):
    # given: the random numbers of the rank that does not look are no longer what was saved
    train("first", out="parts", ends_after=SAVED_AT)
    checkpoint = tmp_path / "parts" / f"checkpoint-{SAVED_AT}"
    path = checkpoint / "rng_state_1.pth"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    # when
    first, second = train("second", out="parts", resume=[True, True], call="refused")
    # then
    assert first == second
    assert first.startswith(f"rank 0: {checkpoint} is damaged: ")
    assert "rng_state_1.pth" in first


def test_a_state_that_is_damaged_on_one_machine_is_refused_by_all(train, tmp_path):
    """Which no other rank sees: they would wait for that one."""
    # given
    train("first", out="parts", ends_after=SAVED_AT)
    checkpoint = tmp_path / "parts" / f"checkpoint-{SAVED_AT}"
    damaged = shutil.copytree(checkpoint, tmp_path / "other" / checkpoint.name)
    (damaged / STATE).write_text("{")
    # when
    first, second = train("second", out="parts", resume=[str(checkpoint), str(damaged)], call="refused")
    # then
    assert first == second
    assert first.startswith(f"rank 1: {damaged / STATE}: found no JSON")


def test_an_error_of_the_disk_on_one_rank_ends_the_training_of_all(train, tmp_path):
    # given: a name that no disk looks up
    train("first", out="parts", ends_after=SAVED_AT)
    checkpoint = tmp_path / "parts" / f"checkpoint-{SAVED_AT}"
    found = [str(tmp_path / ("x" * 300)), str(checkpoint)]
    # when
    first, second = train("second", out="parts", resume=found, call="refused")
    # then
    assert first == second
    assert first.startswith("rank 0: ")
    assert first.endswith("File name too long")


@pytest.mark.parametrize("other", ["none", "another"])
def test_ranks_that_would_resume_from_different_checkpoints_are_refused_alike(train, tmp_path, other):
    """A rank on a machine to which the newest checkpoint was not copied: without the others' word it would wait."""
    # given
    train("first", out="parts", ends_after=4, save_steps=1)
    found = [str(tmp_path / "parts" / "checkpoint-4"), None]
    if other == "another":
        found[1] = str(tmp_path / "parts" / "checkpoint-3")
    # when
    first, second = train("second", out="parts", resume=found, call="refused")
    # then
    assert first == second
    assert f"rank 0 from checkpoint-4, rank 1 from {'none' if other == 'none' else 'checkpoint-3'}" in first
    assert "the checkpoint to every machine" in first
