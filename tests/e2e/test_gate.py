"""`trimtab gate` on real trainings: a sound chunk passes every gate, and each gate fails on what it is there for."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab import Schedule
from trimtab.gates.values import GATE_NAMES

TRIMTAB = Path(sys.executable).with_name("trimtab")

_spec = importlib.util.spec_from_file_location(
    "chunks_of_a_mixture", Path(__file__).with_name("chunks_of_a_mixture.py")
)
chunks = importlib.util.module_from_spec(_spec)
sys.modules["chunks_of_a_mixture"] = chunks
_spec.loader.exec_module(chunks)


def gate(*arguments):
    return subprocess.run([TRIMTAB, "gate", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def failed(*arguments):
    """The gates that failed, and the text of each."""
    done = gate(*arguments, "--json", "-")
    found = {one["name"]: one["text"] for one in json.loads(done.stdout)["gates"] if one["status"] == "failed"}
    assert done.returncode == (3 if found else 0)
    return found


def test_every_gate_passes_of_a_sound_chunk_and_of_the_next_one(tmp_path):
    for last_step in (30, 60):
        chunks.train_chunk(tmp_path, last_step)
        done = gate("--strict", "--json", "-")
        document = json.loads(done.stdout)
        assert {one["name"]: one["status"] for one in document["gates"]} == dict.fromkeys(GATE_NAMES, "passed")
        assert (document["chunk"]["first_step"], document["chunk"]["last_step"]) == (last_step - 29, last_step)
        assert document["checkpoint"] == str(tmp_path / "checkpoints" / f"step_{last_step}")
        assert (done.returncode, document["passed"]) == (0, True)


def with_bias(values):
    """From step 11 on the first router has this bias."""

    def before(step, model):
        if step > 10:
            with torch.no_grad():
                model.layers[0].router.bias.copy_(torch.tensor(values))

    return before


def forgetting(step, model):
    """Before step 21 the second router forgets all, and its logits become what gives a z of 0."""
    if step == 21:
        with torch.no_grad():
            model.layers[1].router.weight.zero_()
            model.layers[1].router.bias.fill_(-1.3863)


def emptied(step, model):
    """Before the last step the head forgets all."""
    if step == 30:
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.zero_()


def stopped(step, model):
    if step == 30:
        raise KeyboardInterrupt


def moved(model):
    """What a training does that goes on between the save and the round trip."""
    with torch.no_grad():
        model.head.bias.add_(1e-6)


SPOILT = {
    "finished": {"before": stopped},
    "nonfinite_steps": {"losses": lambda step, losses: losses * float("nan") if step == 30 else losses},
    "learning_rate": {"schedule": Schedule(form="cosine", lr=1e-3, num_steps=chunks.NUM_STEPS)},
    "router_z": {"before": forgetting},
    "router_load": {"before": with_bias([50.0, 50.0, 0.0, 0.0])},
    "dead_experts": {"before": with_bias([0.0, 0.0, 0.0, -50.0])},
    "populations": {"before": with_bias([50.0, 50.0, 0.0, 0.0])},
    "eval_streak": {"evaluations": lambda step, loss: 3.0 + 0.1 * step if step > 10 else 3.0},
    "watch": {"losses": lambda step, losses: losses * float("nan") if step == 30 else losses},
    "checkpoint_written": {"save": False},
    "checkpoint_healthy": {"healthy": False},
    "round_trip": {"behind_save": moved},
    "generation_probe": {"before": emptied},
}
ALONE = {
    "finished": {"checkpoint_written"},
    "learning_rate": set(),
    "dead_experts": set(),
    "checkpoint_written": set(),
    "checkpoint_healthy": set(),
    "round_trip": set(),
    "generation_probe": set(),
}
"""What else fails of a chunk that was spoilt so; the others have several consequences."""


@pytest.mark.parametrize(
    "name",
    [name if name == "learning_rate" else pytest.param(name, marks=pytest.mark.long) for name in SPOILT],
)
def test_a_gate_fails_on_what_it_is_there_for(tmp_path, name):
    # given a chunk of 30 steps in which one thing went wrong
    try:
        chunks.train_chunk(tmp_path, 40 if name == "eval_streak" else 30, **SPOILT[name])
    except KeyboardInterrupt:
        assert name == "finished"
    # then
    found = failed()
    assert name in found
    if name in ALONE:
        assert set(found) == {name} | ALONE[name]


def test_a_byte_that_was_flipped_since_fails_though_it_was_loaded_again(tmp_path):
    chunks.train_chunk(tmp_path, 10)
    payload = tmp_path / "checkpoints/step_10/model.pt"
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 1
    payload.write_bytes(data)
    assert set(failed()) == {"checkpoint_whole"}


def test_a_chunk_that_was_cut_and_resumed_is_judged_as_one(tmp_path):
    # given a chunk that saves at step 10, and is cut before step 21; the rest of it is trained by a plain resume
    with pytest.raises(KeyboardInterrupt):
        chunks.train_chunk(tmp_path, 30, before=stopped, save_at=(10,))
    assert "finished" in failed()
    chunks.train_chunk(tmp_path, 30)
    document = json.loads(gate("--json", "-").stdout)
    assert document["chunk"] == {"first_step": 1, "last_step": 30, "num_steps": 30, "attempts": [1, 2]}
    assert document["passed"]
    assert {one["status"] for one in document["gates"]} == {"passed"}


@pytest.mark.long
def test_a_script_starts_the_next_chunk_only_where_the_gate_lets_it(tmp_path):
    chunks.train_chunk(tmp_path / "sound", 10)
    chunks.train_chunk(tmp_path / "spoilt", 10, healthy=False)
    for out, said in (("sound", "next\n"), ("spoilt", "")):
        script = f"'{TRIMTAB}' gate '{tmp_path / out}' >/dev/null && echo next"
        assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120).stdout == said


@pytest.mark.long
def test_a_trainers_chunk_is_judged_with_its_last_checkpoint(tmp_path):
    # given
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, **sizes))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 32, (64, 8))]
    settings = {"max_steps": 20, "save_steps": 10, "eval_steps": 10, "eval_strategy": "steps", "report_to": []}
    args = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, lr_scheduler_type="cosine", **settings
    )
    trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows[:8])
    trimtab.attach(trainer, watch=True)
    trainer.train()
    # when
    document = json.loads(gate("--json", "-").stdout)
    # then
    found = {one["name"]: one["status"] for one in document["gates"]}
    assert document["checkpoint"] == str(tmp_path / "checkpoint-20")
    assert {name for name, status in found.items() if status == "inapplicable"} == {
        "router_z", "router_load", "dead_experts", "populations"
    }  # fmt: skip
    assert {name for name, status in found.items() if status == "unknown"} == {"round_trip", "generation_probe"}
    assert document["passed"]
