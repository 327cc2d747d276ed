"""A guard in an SFTTrainer keeps a bad document out exactly, and does nothing where there is none."""

import pytest
import torch
from trl import SFTTrainer

import trimtab
from trimtab import GuardConfig
from trimtab.values import STEP_REASONS

GUARD = GuardConfig(multiplier=2.0)

SETTINGS = {
    "text": dict(),
    "bfd": dict(args=dict(packing=True)),
    "bfd_split": dict(args=dict(packing=True, packing_strategy="bfd_split")),
    "wrapped": dict(args=dict(packing=True, packing_strategy="wrapped")),
    "lora": dict(lora=True),
    "dft": dict(args=dict(loss_type="dft")),
    "smoothed": dict(args=dict(label_smoothing_factor=0.1)),
    "router": dict(model="mixtral"),
    "checkpointed gradients": dict(args=dict(gradient_checkpointing=True)),
}


class LeavingOut(SFTTrainer):
    """Trains without Trimtab, but of a batch that holds a marked token the loss is a zero."""

    marked: int

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training and (inputs["input_ids"] == self.marked).any():
            return torch.zeros((), requires_grad=True)
        return loss


def small(name, *, accumulation):
    """One sequence a micro-batch, so that there are enough of them to compare with."""
    setting = SETTINGS[name]
    args = dict(per_device_train_batch_size=1, gradient_accumulation_steps=accumulation)
    return dict(setting, args=args | setting.get("args", {}))


def late_document(documents):
    """One that comes when the guard has its history, and did not come before; and where it comes."""
    places = [(step, micro) for step, micros in documents.items() for micro in range(len(micros))]
    seen = [documents[step][micro] for step, micro in places]
    bad = min(set.union(*seen[4:]) - set.union(*seen[:4]))
    return bad, {place for place, found in zip(places, seen, strict=True) if bad in found}


def same(found, expected):
    return all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "dft"])  # there a costly token weighs nothing
def test_a_bad_document_is_kept_out_exactly(sft, name, accumulation):
    # given a document that costs far more than any other, and an oracle that leaves it out by its tokens
    setting = small(name, accumulation=accumulation)
    documents = sft.train(setting).documents
    bad, places = late_document(documents)
    oracle_of = type("Oracle", (LeavingOut,), dict(marked=sft.make_tokenizer().convert_tokens_to_ids("<costly>")))
    oracle = sft.train(setting, costly=[bad], cls=oracle_of)
    plain = sft.train(setting, costly=[bad])
    # when
    trained = sft.train(setting, costly=[bad], keep=True, attach=dict(guard=GUARD))
    # then
    assert same(trained.weights, oracle.weights)
    assert not same(trained.weights, plain.weights)
    # and the log says of each micro-batch with the document, and of no other, that it was kept out
    skipped = {
        (int(step), int(micro))
        for block in trained.log.row_blocks()
        for step, micro, keep in zip(block.step, block.micro, block.keep, strict=True)
        if not keep
    }
    assert skipped == places
    # and a window of which nothing was left was not stepped
    dropped = [all((step, micro) in places for micro in range(len(micros))) for step, micros in documents.items()]
    reasons = [STEP_REASONS[code] for code in trained.log.step_columns().reason]
    assert reasons == ["all_skipped" if drop else "stepped" for drop in dropped]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_guard_that_leaves_nothing_out_changes_nothing(sft, name):
    setting = small(name, accumulation=2)
    plain = sft.train(setting)
    trained = sft.train(setting, keep=True, attach=dict(guard=GuardConfig(multiplier=20.0)))
    assert same(trained.weights, plain.weights)
    assert trained.logged == plain.logged
    assert trained.log.step_columns().num_skipped_micros.sum() == 0


def test_the_line_about_a_skip_names_the_document(sft, said):
    setting = small("bfd", accumulation=2)
    bad, _ = late_document(sft.train(setting).documents)
    sft.train(setting, costly=[bad], keep=True, attach=dict(guard=GUARD))
    assert [line for line in said() if "Guard skipped micro-batch" in line and f"row {bad} leads it" in line]


def test_rewind_names_the_bad_document_first(sft):
    setting = small("bfd", accumulation=1)
    bad, places = late_document(sft.train(setting).documents)
    trained = sft.train(setting, costly=[bad], keep=True, attach={})
    findings = trimtab.rewind(trained.run.folder)
    assert (findings.step, 0) in places
    assert findings.rows[0].row == bad


def test_a_guard_needs_no_rows(sft):
    setting = small("bfd", accumulation=1)
    bad, places = late_document(sft.train(setting).documents)
    trained = sft.train(setting, costly=[bad], attach=dict(guard=GUARD))
    steps = trained.log.step_columns()
    assert {(int(step), 0) for step in steps.step[steps.num_skipped_micros > 0]} == places
