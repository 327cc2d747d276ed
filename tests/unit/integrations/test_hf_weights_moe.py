"""A Trainer goes on from a mixture-of-experts checkpoint with all of its weights, or is refused before it loads any."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM, MixtralForCausalLM

import trimtab
from trimtab.errors import CheckpointError
from trimtab.integrations.hf_weights import refuse_if_not_all_load
from trimtab.resume.describe import Saved, describe
from trimtab.resume.manifest import read_manifest

ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, save_strategy="steps", save_steps=4)


def mixtral(bench):
    """As transformers makes it: the one of other tests has a head of its own."""
    return MixtralForCausalLM(bench.make_model("mixtral").config)


@pytest.fixture
def interrupted(bench):
    """A Mixtral's training of eight steps with a checkpoint after the fourth."""
    torch.manual_seed(0)
    trained = bench.train(dict(args=ARGS), model=mixtral(bench), attach={})
    return trained, Path(trained.trainer.args.output_dir, "checkpoint-4")


def test_a_checkpoint_whose_experts_a_trainer_would_leave_at_random_is_refused(interrupted, bench):
    # given a model that was built as at the first start
    _, folder = interrupted
    model = mixtral(bench)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = bench.trainer(dict(args=ARGS), model=model)
    trimtab.attach(trainer)
    # when
    with pytest.raises(CheckpointError, match=r"3 of its weights in all. Nothing was loaded") as refused:
        trainer.train(resume_from_checkpoint=str(folder))
    # then
    assert "model.layers.0.mlp.gate.weight" in str(refused.value)
    assert f"MixtralForCausalLM.from_pretrained({str(folder)!r})" in str(refused.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_that_is_made_from_the_checkpoint_goes_on_bit_for_bit(interrupted, bench, tmp_path):
    # given what the error says to do
    trained, folder = interrupted
    shutil.copytree(folder, tmp_path / "out" / "checkpoint-4")
    model = MixtralForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-4")
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(tmp_path / "out"))), model=model)
    trimtab.attach(trainer, watch=True)
    # when
    trainer.train(resume_from_checkpoint=True)
    # then
    ended = trainer.model.state_dict()
    assert all(torch.equal(value, ended[name]) for name, value in trained.weights.items())


@pytest.mark.parametrize("kind", ["llama", "bert_masked", "t5", "plain", "lora"])
def test_checkpoints_that_load_whole_are_not_refused(bench, kind):
    setting = dict(model=kind, collator="pad_without_mask", args=ARGS | dict(max_steps=4))
    trained = bench.train(setting, attach={})
    trainer = bench.trainer(dict(setting, args=ARGS | dict(max_steps=6)))
    trimtab.attach(trainer)
    trainer.train(resume_from_checkpoint=str(Path(trained.trainer.args.output_dir, "checkpoint-4")))
    assert trainer.state.global_step == 6


def test_a_tied_weight_that_is_saved_once_is_there(bench, tmp_path):
    # given
    config = LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - no mapping
    # then
    refuse_if_not_all_load(tmp_path, bench.trainer(model=LlamaForCausalLM(config)))


def test_a_refusal_for_another_reason_says_at_once_what_its_replacement_takes(interrupted, bench):
    # given a newest checkpoint that is not healthy, beside one whose experts a trainer would leave at random
    _, folder = interrupted
    newest = folder.with_name("checkpoint-8")
    saved = read_manifest(newest)
    describe(
        newest,
        Saved(
            step=8, run_id=saved.run_id, world_size=1, has=frozenset(saved.parts), unhealthy_because=("collapse",),
            unhealthy_since=4, loss=None, lr=(), resumed_from=None, facts={},
        ),
        saver="transformers",
        parts_of=lambda _: saved.parts,
        versions={},
    )  # fmt: skip
    trainer = bench.trainer(dict(args=ARGS | dict(output_dir=str(folder.parent))), model=mixtral(bench))
    trimtab.attach(trainer)
    # when
    with pytest.raises(CheckpointError, match="is not healthy: collapse") as refused:
        trainer.train(resume_from_checkpoint=True)
    # then
    model, call = f"MixtralForCausalLM.from_pretrained({str(folder)!r})", f"resume_from_checkpoint={str(folder)!r}"
    assert f"checkpoint-4: give the Trainer {model}, then trainer.train({call})" in str(refused.value)
