"""Checkpoints of a Trainer without a manifest: complete ones are taken, and each way of being damaged has its words."""

import json
import os
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trimtab.resume.foreign.hf import inspect_hf


def test_a_complete_checkpoint_is_taken(hf_checkpoint):
    found = inspect_hf(hf_checkpoint(500))
    assert found.parts == ("model", "optimizer", "step", "rng", "scheduler", "loss")
    assert (found.missing, found.problems) == ((), ())
    assert (found.step, found.loss, found.num_files) == (500, 1.5, 4)
    assert found.notes == ("of a safetensors file the layout alone is checked: it has no checksum",)


@pytest.mark.long
def test_what_a_real_trainer_leaves_is_taken(tmp_path, monkeypatch):
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x, labels=None):
            return {"loss": ((self.line(x) - labels) ** 2).mean()}

    rows = [{"x": torch.randn(4), "labels": torch.randn(4)} for _ in range(40)]
    for name, settings in (("whole", {}), ("model_only", {"save_only_model": True})):
        args = TrainingArguments(
            str(tmp_path / name), max_steps=4, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, **settings
        )
        Trainer(Line(), args, train_dataset=rows).train()
    for step in (2, 4):
        whole, model_only = (inspect_hf(tmp_path / name / f"checkpoint-{step}") for name in ("whole", "model_only"))
        assert (whole.missing, whole.problems, whole.step) == ((), (), step)
        assert (model_only.missing, model_only.problems) == (("optimizer", "rng", "scheduler"), ())


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("optimizer.pt", "optimizer"),
        ("scheduler.pt", "scheduler"),
        ("rng_state.pth", "rng"),
        ("model.safetensors", "model"),
    ],
)
def test_a_part_that_is_missing_is_named(hf_checkpoint, name, missing):
    folder = hf_checkpoint()
    (folder / name).unlink()
    found = inspect_hf(folder)
    assert found.missing == (missing,)
    assert found.problems == ()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
def test_an_empty_or_truncated_file_is_named(hf_checkpoint, name):
    folder = hf_checkpoint()
    whole = (folder / name).read_bytes()
    for data, words in ((b"", "is empty (0 bytes)"), (whole[:-7], "truncated")):
        (folder / name).write_bytes(data)
        (problem,) = inspect_hf(folder).problems
        assert problem.startswith(f"{name} ")
        assert words in problem


def test_a_killed_save_has_no_trainer_state(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / "trainer_state.json").unlink()
    assert inspect_hf(folder).problems == ("trainer_state.json is missing; a Trainer writes it last",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"", "is empty"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"global_step": 1' + b"0" * 10_000 + b"}", "no JSON object"),
        (b'{"global_step": true}', "names no global_step"),
        (b'{"global_step": -500}', "names no global_step"),
        (b'{"global_step": 400}', "says global_step 400; the folder checkpoint-500 was copied or renamed"),
    ],
)
def test_a_trainer_state_that_cannot_be_taken_at_its_word_is_named(hf_checkpoint, text, words):
    folder = hf_checkpoint(500)
    (folder / "trainer_state.json").write_bytes(text)
    (problem,) = inspect_hf(folder).problems
    assert words in problem


def test_a_loss_that_is_no_number_is_pythons_spelling_and_no_damage(hf_checkpoint):
    folder = hf_checkpoint(500)
    (folder / "trainer_state.json").write_text('{"global_step": 500, "log_history": [{"loss": NaN}]}')
    found = inspect_hf(folder)
    assert found.problems == ()
    assert np.isnan(found.loss)


@pytest.fixture
def sharded(hf_checkpoint, states):
    folder = hf_checkpoint()
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    placed = dict(zip(states["model"], names, strict=True))
    for tensor, name in placed.items():
        save_file({tensor: states["model"][tensor]}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def test_a_model_in_shards_is_taken(sharded):
    found = inspect_hf(sharded)
    assert (found.missing, found.problems) == ((), ())


def test_one_shard_of_two_missing_is_named(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    first, second = inspect_hf(sharded).problems
    assert first == "model-00002-of-00002.safetensors is missing; model.safetensors.index.json names it"
    assert second == "model has 1 of its 2 shards"


def test_a_shard_of_another_model_is_named(sharded):
    save_file({"other": torch.ones(2)}, sharded / "model-00002-of-00002.safetensors")
    assert inspect_hf(sharded).problems == ("model-00002-of-00002.safetensors lacks 1 of its tensors, bias for one",)


@pytest.mark.parametrize("placed", [None, {}, {"a": 3}, {"weight": "../../../etc/passwd"}, {"weight": "/etc/passwd"}])
def test_an_index_that_leads_elsewhere_or_nowhere_is_named(sharded, placed):
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (problem,) = inspect_hf(sharded).problems
    assert "names no weights" in problem or "is missing; model.safetensors.index.json names it" in problem


def test_the_random_state_of_each_rank_must_be_there(hf_checkpoint, states):
    folder = hf_checkpoint()
    (folder / "rng_state.pth").unlink()
    for rank in (0, 1, 3):
        torch.save({"cpu": states["rng_state"]}, folder / f"rng_state_{rank}.pth")
    assert inspect_hf(folder).problems == ("rng_state_0.pth is one of 4 ranks', and that of rank 2 is missing",)


def test_numpys_generator_in_the_random_state_is_what_a_trainer_loads(hf_checkpoint, states):
    folder = hf_checkpoint()
    torch.save({"cpu": states["rng_state"], "numpy": np.random.get_state()}, folder / "rng_state.pth")
    assert inspect_hf(folder).problems == ()
    # and nowhere else
    torch.save({"numpy": np.random.get_state()}, folder / "scheduler.pt")
    (problem,) = inspect_hf(folder).problems
    assert problem.startswith("scheduler.pt needs pickle: numpy")


def test_one_rank_of_two_empty_is_refused(hf_checkpoint):
    # the case of a checkpoint with mp_rank_00 of 0 bytes beside mp_rank_01 of 2.6 GB
    folder = hf_checkpoint()
    (folder / "mp_rank_00").touch()
    with (folder / "mp_rank_01").open("wb") as file:
        file.truncate(2_600_294_812)
    assert inspect_hf(folder).problems == ("mp_rank_00 is empty (0 bytes)",)
    # and as DeepSpeed lays them out
    states = folder / "global_step500"
    states.mkdir()
    (states / "mp_rank_00_model_states.pt").touch()
    assert "global_step500/mp_rank_00_model_states.pt is empty (0 bytes)" in inspect_hf(folder).problems


def test_a_deepspeed_checkpoint_keeps_its_scheduler_in_its_own_files(hf_checkpoint, states):
    folder = hf_checkpoint()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (folder / name).unlink()
    inner = folder / "global_step500"
    inner.mkdir()
    torch.save(states["model"], inner / "mp_rank_00_model_states.pt")
    torch.save(states["optimizer"], inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    found = inspect_hf(folder)
    assert (found.missing, found.problems) == ((), ())
    assert any("by pickle" in note for note in found.notes)


def test_a_sharded_save_of_fsdp_with_a_gap_between_its_ranks_is_named(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / "model.safetensors").unlink()
    inner = folder / "pytorch_model_fsdp_0"
    inner.mkdir()
    for name in (".metadata", "__0_0.distcp", "__2_0.distcp"):
        (inner / name).write_bytes(b"x")
    (problem,) = inspect_hf(folder).problems
    assert problem == "pytorch_model_fsdp_0/__0_0.distcp is one of 3 ranks', and that of rank 1 is missing"


def test_a_number_of_ranks_that_nobody_has_takes_no_time(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / f"rng_state_{10**30}.pth").write_bytes((folder / "rng_state.pth").read_bytes())
    (folder / f"model-00001-of-{10**30}.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    inspect_hf(folder)


def test_a_hostile_optimizer_is_named_and_not_run(hf_checkpoint, tmp_path):
    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    folder = hf_checkpoint()
    torch.save({"state": Runs()}, folder / "optimizer.pt")
    (problem,) = inspect_hf(folder).problems
    assert problem.startswith(f"optimizer.pt needs pickle: {os.system.__module__}.system")
    assert not (tmp_path / "ran").exists()


def test_a_safetensors_header_of_terabytes_is_not_read(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    (problem,) = inspect_hf(folder).problems
    assert "it is truncated" in problem


def test_a_name_of_a_file_never_acts_on_a_terminal(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / "evil\x1b[31m\u202e.pt").touch()
    (problem,) = inspect_hf(folder).problems
    assert problem == "evil\\x1b[31m\\u202e.pt is empty (0 bytes)"


def test_a_folder_that_leads_into_itself_ends(hf_checkpoint):
    folder = hf_checkpoint()
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert inspect_hf(folder).problems == ()


def test_a_folder_that_is_not_there_is_a_problem(tmp_path):
    (problem,) = inspect_hf(tmp_path / "checkpoint-3").problems
    assert "cannot be listed" in problem
