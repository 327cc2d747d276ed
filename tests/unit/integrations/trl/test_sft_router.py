"""A watch on an SFTTrainer's mixture-of-experts model, packed or padded, with an adapter or without."""

import copy

import pytest
import torch

from trimtab.rules.watch_config import WatchConfig

K = 2  # of the tiny Mixtral
EVERY_2 = WatchConfig(report_every=2, host_memory_floor_bytes=1)  # whatever else runs on this machine
TWICE = dict(num_train_epochs=2)

SETTINGS = {
    "padded": dict(args=TWICE),
    "packed": dict(args=TWICE | dict(packing=True)),
    "adapter": dict(args=TWICE, lora=True),
    "checkpointed gradients": dict(args=TWICE | dict(gradient_checkpointing=True)),
}


def real_tokens(batches):
    """Tokens of some batches that are no padding."""
    return sum(int(batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()) for batch in batches)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_report_counts_the_real_tokens_of_its_steps_and_changes_nothing(sft, name):
    # given
    setting = dict(model="mixtral", **SETTINGS[name])
    dataset = sft.make_dataset()
    plain = sft.train(setting, model=sft.make_model("mixtral"), dataset=copy.deepcopy(dataset))
    # when
    watched = sft.train(setting, model=sft.make_model("mixtral"), dataset=dataset, attach=dict(watch=EVERY_2))
    # then
    assert all(torch.equal(value, watched.weights[key]) for key, value in plain.weights.items())
    assert watched.logged == plain.logged
    reports = {event.step: event.facts for event in watched.log.event_list() if event.kind == "router"}
    assert list(reports) == list(range(2, watched.trainer.state.global_step + 1, 2))
    for step, facts in reports.items():
        seen = [batch for of_step in (step - 1, step) for batch in watched.probe.batches[of_step]]
        assert facts["expected_tokens"] == real_tokens(seen)
        assert [sum(counts) for counts in facts["layers"]["counts"]] == [K * facts["expected_tokens"]]


def test_a_router_that_is_uniform_is_told(sft):
    # given a router whose logits are all 0
    model, told = sft.make_model("mixtral"), []
    gate = model.model.layers[0].mlp.gate
    with torch.no_grad():
        gate.weight.zero_()
    gate.weight.requires_grad_(False)
    # when
    sft.train(dict(model="mixtral", args=TWICE), model=model, attach=dict(watch=EVERY_2, on_finding=told.append))
    # then
    assert [finding.step for finding in told if finding.kind == "collapse"] == [2]
