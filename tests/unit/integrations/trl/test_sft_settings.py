"""Every way in which an SFTTrainer makes sequences of documents: nothing changes, and each document's cost is its own.

The oracle knows a document by its words, and its cost from the plain model on what the trainer's model saw.
"""

import pytest
import torch

PACKED = dict(packing=True)
SPLIT = dict(packing=True, packing_strategy="bfd_split")
WRAPPED = dict(packing=True, packing_strategy="wrapped")

SETTINGS = {
    "text": dict(),
    "text, checkpointed gradients": dict(args=dict(gradient_checkpointing=True)),
    "text, shuffled": dict(args=dict(shuffle_dataset=True)),
    "text, two processes": dict(args=dict(dataset_num_proc=2)),
    "text, two workers, two epochs": dict(args=dict(dataloader_num_workers=2, num_train_epochs=2)),
    "text, grouped by length": dict(args=dict(train_sampling_strategy="group_by_length")),
    "text, all columns kept": dict(args=dict(remove_unused_columns=False)),
    "text, cut from the left": dict(args=dict(truncation_mode="keep_end")),
    "prompt-completion": dict(kind="prompt-completion"),
    "prompt-completion, all supervised": dict(kind="prompt-completion", args=dict(completion_only_loss=False)),
    "messages": dict(kind="messages"),
    "prompt messages": dict(kind="prompt messages"),
    "tokens": dict(kind="tokens"),
    "tokens and labels": dict(kind="tokens and labels"),
    "bfd": dict(args=PACKED),
    "bfd, shuffled, two workers": dict(args=dict(PACKED, shuffle_dataset=True, dataloader_num_workers=2)),
    "bfd, messages": dict(kind="messages", args=PACKED),
    "bfd, prompt-completion": dict(kind="prompt-completion", args=PACKED),
    "bfd, tokens and labels": dict(kind="tokens and labels", args=PACKED),
    "bfd, two processes": dict(args=dict(PACKED, dataset_num_proc=2)),
    "bfd, padded to a multiple": dict(args=dict(PACKED, pad_to_multiple_of=7)),
    "bfd_split": dict(args=SPLIT),
    "bfd_split, shuffled": dict(args=dict(SPLIT, shuffle_dataset=True)),
    "wrapped": dict(args=WRAPPED),
    "wrapped, shuffled": dict(args=dict(WRAPPED, shuffle_dataset=True)),
    "wrapped, flattened": dict(args=dict(WRAPPED, padding_free=True)),
    "padding-free": dict(args=dict(padding_free=True, max_length=None)),
    "padding-free, padded to a multiple": dict(args=dict(padding_free=True, max_length=None, pad_to_multiple_of=7)),
    "lora": dict(lora=True),
    "lora, bfd_split": dict(lora=True, args=SPLIT),
    "a router": dict(model="mixtral"),
    "a router, bfd": dict(model="mixtral", args=PACKED),
    "stream": dict(stream=True, args=dict(max_steps=9)),
    "stream, prompt-completion": dict(stream=True, kind="prompt-completion", args=dict(max_steps=7)),
    "stream, two workers": dict(stream=True, args=dict(max_steps=7, dataloader_num_workers=2)),
    "stream, shuffled": dict(stream=True, args=dict(max_steps=7, shuffle_dataset=True)),
    "stream, bfd": dict(stream=True, args=dict(PACKED, max_steps=5)),
    "stream, wrapped": dict(stream=True, args=dict(WRAPPED, max_steps=5)),
    "dft": dict(args=dict(loss_type="dft")),
    "dft, bfd_split": dict(args=dict(SPLIT, loss_type="dft")),
    "smoothed": dict(args=dict(label_smoothing_factor=0.1)),
    "smoothed, bfd_split": dict(args=dict(SPLIT, label_smoothing_factor=0.1)),
    "smoothed, wrapped": dict(args=dict(WRAPPED, label_smoothing_factor=0.1)),
}

FORMULAS = {name: word for name in SETTINGS for word in ("dft", "smoothed") if name.startswith(word)}


def still(setting):
    """The same setting with a model that stays what it is, so that one oracle serves all steps."""
    return dict(setting, args=dict(setting.get("args", {}), learning_rate=0.0))


def accumulated(setting):
    return dict(setting, args=dict(setting.get("args", {}), gradient_accumulation_steps=2))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_cost_of_a_document_is_its_own(sft, name):
    # when
    trained = sft.train(still(SETTINGS[name]), keep=True, attach={})
    # then
    expected, found = trained.true_costs(FORMULAS.get(name, "nll")), trained.recorded_costs()
    assert found.keys() == expected.keys()
    for step, documents in expected.items():
        counts = {document: num_tokens for document, (_, num_tokens) in documents.items()}
        assert {row: num_tokens for row, (_, num_tokens) in found[step].items()} == counts
        for document, (loss_sum, _) in documents.items():
            assert found[step][document][0] == pytest.approx(loss_sum, rel=1e-5)
    # and what a step costs is what its documents cost
    steps = trained.log.step_columns()
    num_tokens = dict(zip(steps.step.tolist(), steps.num_tokens.tolist(), strict=True))
    totals = {step: sum(n for _, n in documents.values()) for step, documents in expected.items()}
    assert {step: count for step, count in num_tokens.items() if count} == totals


@pytest.mark.parametrize("name", SETTINGS)
def test_order_weights_and_reports_are_those_without_trimtab(sft, name):
    # given
    plain = sft.train(accumulated(SETTINGS[name]))
    # when
    trained = sft.train(accumulated(SETTINGS[name]), keep=True, attach={})
    # then the model saw the same, and nothing else
    for step, batches in plain.probe.batches.items():
        for seen, expected in zip(trained.probe.batches[step], batches, strict=True):
            assert_same(seen, expected)
    assert trained.probe.batches.keys() == plain.probe.batches.keys()
    # and became the same
    assert_same(trained.weights, plain.weights)
    assert trained.logged == plain.logged
    # and the log agrees with the trainer
    steps = trained.log.step_columns()
    assert steps.loss.tolist() == pytest.approx([entry["loss"] for entry in plain.logged], rel=1e-6)
    assert steps.grad_norm.tolist() == pytest.approx([entry["grad_norm"] for entry in plain.logged], rel=1e-6)
