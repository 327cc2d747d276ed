"""Every way to set up a `Trainer`: what is recorded is what was trained on, and nothing else changes.

A new setting is one line in `SETTINGS`, and inherits every test of this file. The rows and losses that are compared
with come from what the model was given and from plain torch; the trainings, from trainers without Trimtab.
"""

import contextlib

import pytest
import torch

import trimtab
from trimtab import GuardConfig

_workers = dict(dataloader_num_workers=2)


def long(**setting):
    """For a setting that takes long for no reason of ours: torch waits 10 s for persistent workers to go."""
    return pytest.param(setting, marks=pytest.mark.long)


SETTINGS = {
    "padded": dict(),
    "accumulation 2, short last window": dict(args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "accumulation 4, four epochs": dict(args=dict(gradient_accumulation_steps=4, num_train_epochs=4)),
    "map-style dataset": dict(data="map"),
    "two workers": dict(args=dict(dataloader_num_workers=2)),
    "persistent workers": long(args=dict(_workers, dataloader_persistent_workers=True, num_train_epochs=2)),
    "drop_last": dict(args=dict(dataloader_drop_last=True, num_train_epochs=3, gradient_accumulation_steps=2)),
    "group_by_length": dict(args=dict(train_sampling_strategy="group_by_length", num_train_epochs=2)),
    "batch_rebalance": dict(args=dict(train_sampling_strategy="batch_rebalance", num_train_epochs=2)),
    "sequential": dict(args=dict(train_sampling_strategy="sequential")),
    "plain sampler": dict(args=dict(accelerator_config=dict(use_seedable_sampler=False), num_train_epochs=2)),
    "label smoothing": dict(args=dict(label_smoothing_factor=0.1, gradient_accumulation_steps=2, num_train_epochs=2)),
    "tokens not averaged": dict(args=dict(average_tokens_across_devices=False, gradient_accumulation_steps=2)),
    "Mixtral with router loss": dict(model="mixtral", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "Mixtral, smoothed": dict(model="mixtral", args=dict(label_smoothing_factor=0.1)),
    "LoRA": dict(model="lora", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "bf16": dict(args=dict(bf16=True, gradient_accumulation_steps=2, num_train_epochs=2)),
    "bf16 in the model's forward": dict(model="bert_rows", args=dict(bf16=True)),
    "evaluation between": dict(evaluate=True),
    "no clipping": dict(args=dict(max_grad_norm=0.0)),
    "gradient checkpointing": dict(args=dict(activation_checkpointing=True)),
    "SGD with momentum": dict(args=dict(optim="sgd", optim_args="momentum=0.9", learning_rate=1e-2)),
    "weight decay": dict(args=dict(weight_decay=0.1)),
    "Hugging Face dataset": dict(data="hf"),
    "selection of a dataset": dict(data="hf_selection", args=dict(dataloader_num_workers=2)),
    "columns kept": dict(data="hf", args=dict(remove_unused_columns=False)),
    "stream": dict(data="stream", args=dict(max_steps=9)),
    "stream that knows its length": dict(data="sized_stream"),
    "Hugging Face stream": dict(data="hf_stream", args=dict(max_steps=7)),
    "numbered stream": dict(data="numbered_stream", args=dict(max_steps=7)),
    "numbered stream, two workers": dict(
        data="numbered_stream", args=dict(max_steps=14, dataloader_num_workers=2, gradient_accumulation_steps=2)
    ),
    "flattened": dict(collator="flatten", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "flattened, smoothed": dict(collator="flatten", args=dict(label_smoothing_factor=0.1)),
    "BERT, label a row": dict(model="bert_rows", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "BERT, label a token": dict(model="bert_tokens", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "BERT, masked": dict(model="bert_masked"),
    "BERT, smoothed": dict(model="bert_rows", args=dict(label_smoothing_factor=0.1)),
    "T5": dict(model="t5", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
    "T5, smoothed": dict(model="t5", collator="pad_and_shift", args=dict(label_smoothing_factor=0.1)),
    "plain module": dict(
        model="plain", collator="pad_without_mask", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)
    ),
    "user's compute_loss_func": dict(
        loss_func="token mean", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)
    ),
    "user's compute_loss": dict(trainer="OwnLoss", args=dict(gradient_accumulation_steps=2, num_train_epochs=2)),
}

WITH_TRIMTAB = {
    "recording": dict(),
    "robust guard": dict(guard=GuardConfig(rule="robust")),
    "mean guard": dict(guard=GuardConfig(multiplier=3.0)),
    "guard alone": dict(guard=GuardConfig(multiplier=3.0), record=False),
}

every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_same_history(found, expected):
    assert len(found) == len(expected)
    for entry, other in zip(found, expected, strict=True):
        assert entry == pytest.approx(other, rel=1e-6, nan_ok=True)


@every_setting
def test_nothing_changes_without_a_fault(bench, setting):
    # given a training that never heard of Trimtab
    plain = bench.train(setting)
    assert len(plain.probe.clock) >= 4
    for name, attach in WITH_TRIMTAB.items():
        # when the same is trained with it
        trained = bench.train(setting, attach=attach)
        # then data order, weights, and what the trainer logs are the same
        assert trained.probe.rows == plain.probe.rows, name
        assert_same(trained.weights, plain.weights)
        assert_same_history(trained.logged, plain.logged)
        assert trained.probe.clock == plain.probe.clock


@every_setting
def test_the_rows_of_each_step_are_those_trained_on(bench, setting):
    # when
    trained = bench.train(setting, attach={})
    # then the log names what the model saw, micro-batch by micro-batch; a stream's evaluations are not among it
    seen = {step: [sorted(micro) for micro in micros] for step, micros in trained.probe.rows.items()}
    recorded = {step: [sorted(micro) for micro in micros] for step, micros in trained.recorded_rows().items()}
    assert recorded == seen
    # and every step with what the trainer knows of it
    steps = trained.log.step_columns()
    training = [entry for entry in trained.logged if "loss" in entry]
    assert steps.step.tolist() == [entry["step"] for entry in training]
    assert steps.loss.tolist() == pytest.approx([entry["loss"] for entry in training], rel=1e-6)
    assert steps.grad_norm.tolist() == pytest.approx([entry["grad_norm"] for entry in training], rel=1e-6)
    assert steps.lr.tolist() == pytest.approx([entry["learning_rate"] for entry in training])
    assert set(steps.reason.tolist()) == {0}


@every_setting
def test_losses_and_tokens_are_those_of_plain_torch(bench, setting):
    # given the first micro-batch, and the weights it met
    trained = bench.train(setting, attach={}, keep=True)
    rows = trained.probe.rows[1][0]
    # concatenated rows do not see each other, so each is worth what it is alone
    batches = [[row] for row in rows] if setting.get("collator") == "flatten" else [rows]
    expected = {}
    for batch in batches:
        expected |= plain_losses(trained, bench.batch(setting, batch), batch)
    # when its records are read
    recorded = {row: (loss, num) for step, micro, row, loss, num, _ in trained.records() if (step, micro) == (1, 0)}
    # then
    assert recorded.keys() == expected.keys()
    for row, (loss, num_tokens) in expected.items():
        assert recorded[row] == (pytest.approx(loss, rel=1e-5), num_tokens)


def plain_losses(trained, batch, rows):
    """row -> (loss sum, supervised tokens), by the definition of each loss."""
    args, labels = trained.trainer.args, batch.pop("labels")
    kind = type(trained.initial).__name__
    autocast = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    with torch.no_grad(), autocast:
        outputs = trained.initial(**batch, **({"labels": labels} if kind.startswith("T5") else {}))
    logits = (outputs["logits"] if isinstance(outputs, dict) else outputs.logits).float()
    if kind.startswith(("Llama", "Mixtral", "Peft")):
        logits, labels = logits[:, :-1], labels[:, 1:]
    if labels.dim() == 1:
        logits, labels = logits[:, None], labels[:, None]
    losses, smoothing = {}, args.label_smoothing_factor
    for place, row in enumerate(rows):
        supervised = labels[place] != -100
        likely = logits[place][supervised].log_softmax(-1)
        own = likely.gather(1, labels[place][supervised][:, None]).sum()
        loss = -(1 - smoothing) * own - smoothing * likely.mean(1).sum()
        losses[row] = (loss.item(), int(supervised.sum()))
    return losses


# ------------------------------------------------------------------------------------------------- with a planted row


def choose_row(bench, setting, *, step, **more):
    """The first row of an optimizer step, and all steps that it is trained in."""
    rows = bench.train(setting, **more).probe.rows
    bad = rows[step][0][0]
    return bad, [step for step in sorted(rows) if bad in [row for micro in rows[step] for row in micro]]


def one_long_epoch(setting):
    """The same setting with enough rows for seven steps, each row once, and how many rows that takes."""
    args = setting.get("args", {})
    accumulation = args.get("gradient_accumulation_steps", 1)
    return {**setting, "args": {**args, "num_train_epochs": 1}}, 13 * accumulation


@every_setting
def test_a_costly_row_is_named_from_the_log(bench, setting):
    # given a row whose labels nobody could guess
    setting, num_rows = one_long_epoch(setting)
    bad, bad_steps = choose_row(bench, setting, step=5, faults=dict(num_rows=num_rows))
    # when it is trained on
    trained = bench.train(setting, attach={}, faults=dict(num_rows=num_rows, costly=[bad]))
    # then its step is the worst, and it leads the rows of it
    findings = trimtab.rewind(trained.run.folder)
    assert findings.step in bad_steps
    assert [spike.step for spike in findings.spikes if spike.severity == "warning"] == bad_steps
    assert findings.rows[0].row == bad
    assert findings.rows[0].share > 0.5


@every_setting
def test_a_row_with_a_nonfinite_loss_is_named_from_the_log(bench, setting):
    # given a row with a token that has no embedding
    setting, num_rows = one_long_epoch(setting)
    bad, bad_steps = choose_row(bench, setting, step=5, faults=dict(num_rows=num_rows))
    # when it is trained on, without a guard
    trained = bench.train(setting, attach={}, faults=dict(num_rows=num_rows, nan=[bad]))
    # then the weights are lost, and the step at which that began is the one that is named
    findings = trimtab.rewind(trained.run.folder)
    assert findings.step == bad_steps[0]
    assert findings.rows[0].row == bad
    assert not findings.rows[0].finite


@pytest.mark.parametrize("fault", ["costly", "nan"])
@every_setting
def test_a_guard_leaves_the_micro_batch_of_a_bad_row_out(bench, setting, fault):
    # given a row that is trained on when the guard has a baseline
    accumulation = setting.get("args", {}).get("gradient_accumulation_steps", 1)
    bad, bad_steps = choose_row(bench, setting, step=4 // accumulation + 1)  # three micro-batches lie before
    oracle = bench.train(setting, left_out=[bad], faults={fault: [bad]})
    # when
    guarded = bench.train(setting, attach=dict(guard=GuardConfig(multiplier=3.0)), faults={fault: [bad]})
    # then weights, counters, schedule and what is logged are those of a training in which its loss was zero
    assert guarded.probe.rows == oracle.probe.rows
    assert_same(guarded.weights, oracle.weights)
    assert guarded.probe.clock == oracle.probe.clock
    assert_same_history(guarded.logged, oracle.logged)
    # and the log says what was left out, and names the row
    left_out = {(step, row) for step, _, row, _, _, keep in guarded.records() if not keep}
    assert {step for step, _ in left_out} == set(bad_steps)
    assert {step for step, row in left_out if row == bad} == set(bad_steps)
    for step in bad_steps:
        assert trimtab.rewind(guarded.run.folder, step=step).rows[0].row == bad
    steps = guarded.log.step_columns()
    assert steps.step[steps.num_skipped_micros > 0].tolist() == bad_steps
