"""Losses that are no plain cross-entropy, batches whose rows cannot be told: said once, and nothing else changes."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Trainer

import trimtab
from trimtab import GuardConfig

GUARD = GuardConfig(multiplier=3.0)


class Weighted(Trainer):
    """Classes that count differently: no plain sum over tokens."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.linspace(0.5, 1.5, 128)
        loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), weight=weight)
        return (loss, outputs) if return_outputs else loss


class TorchSmoothed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss


class TwoLosses(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss = loss + 0.1 * F.cross_entropy(outputs.logits[:, 0], inputs["input_ids"][:, 0])
        return (loss, outputs) if return_outputs else loss


class FurtherTerm(Trainer):
    """The model's own loss, and a cross-entropy beside it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + 0.1 * F.cross_entropy(outputs.logits[:, 0], inputs["input_ids"][:, 0])
        return (loss, outputs) if return_outputs else loss


class OwnFormula(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        likely = outputs.logits[:, :-1].log_softmax(-1)
        own = likely.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
        mask = labels[:, 1:] != -100
        loss = -(own * mask).sum() / mask.sum()
        return (loss, outputs) if return_outputs else loss


class OwnStep(Trainer):
    """Does not ask compute_loss at all."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = model(**self._prepare_inputs(inputs)).loss
        self.accelerator.backward(loss)
        return loss.detach()


class StepWithOutputs(Trainer):
    """Wants the outputs beside the loss."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss, outputs = self.compute_loss(model, self._prepare_inputs(inputs), return_outputs=True)
        assert outputs.logits.dim() == 3
        self.accelerator.backward(loss)
        return loss.detach()


UNREADABLE = {
    "class weights": (Weighted, "not a plain cross-entropy"),
    "torch's smoothing": (TorchSmoothed, "not a plain cross-entropy"),
    "a formula of one's own": (OwnFormula, "not a plain cross-entropy"),
    "two cross-entropies": (TwoLosses, "made of 2 cross-entropies"),
    "a training step of one's own": (OwnStep, "does not call compute_loss"),
}


def assert_same(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


def num_targets(bench, steps):
    """Supervised targets a step: all labels but the first of a row, which nothing predicts."""
    targets = [sum(label != -100 for label in row["labels"][1:]) for row in bench.rows()]
    return [sum(targets[row] for micro in micros for row in micro) for micros in steps.values()]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(("cls", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_loss_that_cannot_be_told_by_rows_is_said_once_and_rows_are_recorded(bench, said, cls, why, accumulation):
    # given
    setting = dict(args=dict(gradient_accumulation_steps=accumulation))
    plain = bench.train(setting, cls=cls)
    # when
    for attach in (dict(), dict(guard=GUARD)):
        trained = bench.train(setting, cls=cls, attach=attach)
        # then nothing changes
        assert_same(trained.weights, plain.weights)
        assert trained.logged == plain.logged
        # and the rows are there, without a claim about their losses
        seen = {step: [sorted(micro) for micro in micros] for step, micros in plain.probe.rows.items()}
        assert {step: [sorted(m) for m in micros] for step, micros in trained.recorded_rows().items()} == seen
        assert {num_tokens for *_, num_tokens, _ in trained.records()} == {0}
        steps = trained.log.step_columns()
        assert steps.loss.tolist() == pytest.approx([entry["loss"] for entry in plain.logged])
        hidden = [-1] * len(plain.probe.rows)  # a step of one's own hides its labels, too
        expected = hidden if cls is OwnStep else num_targets(bench, plain.probe.rows)
        assert steps.num_tokens.tolist() == expected
        # so that the step losses can be judged
        assert trained.log.steps().numpy()["loss"].tolist() == pytest.approx(steps.loss.tolist())
        [event] = [event for event in trained.log.event_list() if event.kind == "no_row_losses"]
        assert why in event.facts["why"]
    lines = [line for line in said() if line.startswith("Trimtab cannot tell what each row cost")]
    assert len(lines) == 2
    assert why in lines[0]


@pytest.mark.parametrize("cls", [Weighted, OwnFormula, TwoLosses])
@pytest.mark.parametrize("fault", ["costly", "nan"])
def test_a_guard_still_judges_a_loss_that_cannot_be_told_by_rows(bench, cls, fault):
    # given
    setting = dict(args=dict(gradient_accumulation_steps=2, num_train_epochs=2))
    bad = bench.train(setting, cls=cls).probe.rows[3][0][0]
    oracle = bench.train(setting, cls=cls, left_out=[bad], faults={fault: [bad]})
    # when
    trained = bench.train(setting, cls=cls, attach=dict(guard=GUARD), faults={fault: [bad]})
    # then
    assert_same(trained.weights, oracle.weights)
    assert {row for step, _, row, *_, keep in trained.records() if not keep and step == 3} >= {bad}


def test_the_step_is_found_even_where_no_row_loss_is_known(bench):
    bad = bench.train(cls=Weighted).probe.rows[5][0][0]
    trained = bench.train(cls=Weighted, attach={}, faults=dict(costly=[bad]))
    findings = trimtab.rewind(trained.run.folder)
    assert findings.step == 5
    assert bad in [row.row for row in findings.rows]


def test_a_term_beside_the_models_own_loss_belongs_to_no_row(bench):
    # given the same first micro-batch with and without the term
    plain, alone = bench.train(cls=FurtherTerm), bench.train(attach={})
    # when
    trained = bench.train(cls=FurtherTerm, attach=dict(guard=GUARD))
    # then
    assert_same(trained.weights, plain.weights)
    assert trained.records()[:2] == alone.records()[:2]
    assert all(num_tokens > 0 for *_, num_tokens, _ in trained.records())


class RuinedTerm(Trainer):
    """A term beside the cross-entropy that is not finite where token 126 stands, though no row's own loss shows it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ruined = (inputs["input_ids"] == 126).any()
        inputs["input_ids"] = torch.where(inputs["input_ids"] == 126, 99, inputs["input_ids"])
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + torch.where(ruined, torch.nan, 0.0) * outputs.logits.mean()
        return (loss, outputs) if return_outputs else loss


def test_a_term_that_is_not_finite_is_left_out_with_its_micro_batch(bench):
    # given
    setting = dict(args=dict(gradient_accumulation_steps=2))
    bad = bench.train(setting, cls=RuinedTerm).probe.rows[3][0][0]
    faults = dict(nan=[bad])
    oracle = bench.train(setting, cls=RuinedTerm, left_out=[bad], faults=faults, model=bench.make_model("llama"))
    # when
    settings = dict(cls=RuinedTerm, faults=faults, model=bench.make_model("llama"))
    trained = bench.train(setting, attach=dict(guard=GUARD), **settings)
    # then
    assert_same(trained.weights, oracle.weights)
    assert {(step, row) for step, _, row, *_, keep in trained.records() if not keep} >= {(3, bad)}


def test_a_training_step_that_wants_the_outputs_gets_them(bench):
    plain = bench.train(cls=StepWithOutputs)
    trained = bench.train(cls=StepWithOutputs, attach=dict(guard=GUARD))
    assert_same(trained.weights, plain.weights)
    assert all(num_tokens > 0 for *_, num_tokens, _ in trained.records())


def test_a_loss_function_that_is_a_module_is_left_where_it_is(bench):
    # given a module that calls its submodule by the name that transformers uses for something else
    def model():
        made = bench.make_model("plain")
        made.loss_function = made.loss
        return made

    setting = dict(model="plain", collator="pad_without_mask")
    plain = bench.train(setting, model=model())
    trained = bench.train(setting, model=model(), attach=dict(guard=GUARD))
    assert_same(trained.weights, plain.weights)
    assert all(num_tokens > 0 for *_, num_tokens, _ in trained.records())


def test_a_regression_is_recorded_by_rows_alone(bench, said):
    # given
    from transformers import BertConfig, BertForSequenceClassification

    def model():
        torch.manual_seed(0)
        sizes = dict(vocab_size=128, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
        return BertForSequenceClassification(
            BertConfig(**sizes, num_labels=1, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        )

    rows = [{"input_ids": [1 + row, 64, 70], "labels": float(row)} for row in range(13)]
    settings = dict(model=model, rows=rows)

    def collate(items):
        return {
            "input_ids": torch.tensor([item["input_ids"] for item in items]),
            "labels": torch.tensor([item["labels"] for item in items]),
        }

    trainers = [bench.trainer(model=settings["model"](), rows=rows) for _ in range(2)]
    for trainer in trainers:
        trainer.data_collator = collate
    run = trimtab.attach(trainers[1], guard=GuardConfig(multiplier=100.0))
    # when
    for trainer in trainers:
        trainer.train()
    # then
    assert_same(trainers[1].model.state_dict(), trainers[0].model.state_dict())
    assert trimtab.rewind(run.folder).num_steps == 7


# ------------------------------------------------------------------------------------------------------------- batches


def doubled(pad):
    """A collator that makes two sequences of each row: which is whose, nobody can tell from outside."""
    return lambda items: pad([*items, *items])


def test_a_collator_that_changes_the_number_of_sequences_is_said(bench, said):
    # given
    trainers = [bench.trainer() for _ in range(2)]
    for trainer in trainers:
        trainer.data_collator = doubled(trainer.data_collator)
    run = trimtab.attach(trainers[1])
    # when
    for trainer in trainers:
        trainer.train()
    # then
    assert_same(trainers[1].model.state_dict(), trainers[0].model.state_dict())
    assert len([line for line in said() if "one sequence a row" in line]) == 1
    assert trimtab.open_log(run.folder).step_columns().step.tolist() == list(range(1, 8))


# ------------------------------------------------------------------------------------------------------------ compiled


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_unchanged_and_says_that_it_hides_its_loss(bench, said):
    # given
    setting = dict(args=dict(torch_compile=True, torch_compile_backend="aot_eager", gradient_accumulation_steps=2))
    trainers = [bench.trainer(setting, faults=dict(costly=[3])) for _ in range(3)]
    runs = [trimtab.attach(trainers[1]), trimtab.attach(trainers[2], guard=GUARD)]
    # when
    for trainer in trainers:
        trainer.train()
    # then
    assert_same(trainers[1].model.state_dict(), trainers[0].model.state_dict())
    assert len([line for line in said() if "the model is compiled" in line]) == 2
    # and a guard judges what it sees
    steps = trimtab.open_log(runs[1].folder).step_columns()
    assert steps.num_skipped_micros.sum() == 1
