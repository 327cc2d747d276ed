"""A trainer's loss that holds more than the losses of its tokens: judged with it, said once, and no row's doing."""

import math

import pytest
import torch
from transformers import Trainer

import trimtab
from trimtab import GuardConfig
from trimtab.integrations.hf_terms import loss_beyond_rows
from trimtab.torch.losses import reduce_to_rows

GUARD = GuardConfig(multiplier=3.0)
SAID = "micro-batches the trainer's loss was not that of their tokens alone"


class Penalised(Trainer):
    """A penalty of 1000 in one step."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + (1000.0 if self.state.global_step == 4 else 0.0)
        return (loss, outputs) if return_outputs else loss


class Tripled(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (3 * loss, outputs) if return_outputs else 3 * loss


def test_a_term_that_jumps_is_skipped_by_the_guard_and_no_row_is_blamed(bench, said):
    # when
    trained = bench.train(cls=Penalised, attach=dict(guard=GUARD))
    # then
    assert {step for step, *_, keep in trained.records() if not keep} == {5}
    [skipped] = [line for line in said() if "Guard skipped" in line]
    assert "of step 5: spike" in skipped
    assert "leads it" not in skipped
    [line] = [line for line in said() if SAID in line]
    assert line.startswith("In 1 of 7 micro-batches")
    assert "it was judged with that" in line


def test_without_a_guard_the_step_has_the_reported_loss_and_rewind_tells_both(bench, said):
    # given
    plain = bench.train(cls=Penalised)
    # when
    trained = bench.train(cls=Penalised, attach={})
    # then
    assert trained.logged == plain.logged
    assert trained.log.step_columns().loss.tolist() == pytest.approx([entry["loss"] for entry in plain.logged])
    rows = trained.log.steps().numpy()["loss"][4]
    [notice] = [line for line in trimtab.rewind(trained.run.folder).notices if "another loss" in line]
    assert f"at step 5: {plain.logged[4]['loss']:.6g} where the rows have {rows:.6g}." in notice
    [line] = [line for line in said() if SAID in line]
    assert "rows are recorded without that" in line


@pytest.mark.parametrize(
    ("setting", "cls"),
    [
        (dict(), Trainer),
        (dict(args=dict(gradient_accumulation_steps=2)), Trainer),
        (dict(args=dict(gradient_accumulation_steps=2), trainer="OwnLoss"), None),
        (dict(args=dict(gradient_accumulation_steps=2, label_smoothing_factor=0.1)), None),
        (dict(args=dict(gradient_accumulation_steps=3), loss_func="token mean"), None),
        (dict(model="plain", collator="pad_without_mask", args=dict(gradient_accumulation_steps=2)), None),
        (dict(args=dict(bf16=True, gradient_accumulation_steps=2)), None),
    ],
    ids=["plain", "window", "own mean", "smoothed", "own function", "module", "bf16"],
)
def test_what_a_trainer_divides_by_is_no_further_term(bench, said, setting, cls):
    trained = bench.train(setting, cls=cls, attach={}, faults=dict(unsupervised=[3]))
    assert not [line for line in said() if SAID in line]
    assert not [line for line in trimtab.rewind(trained.run.folder).notices if "another loss" in line]


@pytest.mark.parametrize(("setting", "cls"), [(dict(model="mixtral"), None), (dict(), Tripled)], ids=["router", "x3"])
def test_a_term_in_every_loss_is_counted(bench, said, setting, cls):
    bench.train(setting, cls=cls, attach={})
    [line] = [line for line in said() if SAID in line]
    assert line.startswith("In 7 of 7 micro-batches")


@pytest.mark.parametrize(
    ("loss", "dtype", "expected"),
    [
        (2.0, torch.float32, 0.0),  # over its own 4 tokens
        (0.5, torch.float32, 0.0),  # over the 16 of the window
        (2.001, torch.float32, 0.0),
        (2.01, torch.float32, 0.01),
        (7.0, torch.float32, 5.0),
        (0.25, torch.float32, -0.25),
        (2.02, torch.bfloat16, 0.0),
        (math.nan, torch.float32, 0.0),
        (math.inf, torch.float32, 0.0),
    ],
)
def test_what_is_beyond_the_rows_is_what_neither_count_explains(loss, dtype, expected):
    rows = reduce_to_rows(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), rows=[5, 6])
    found = loss_beyond_rows(torch.tensor(loss, dtype=dtype), rows, num_items=torch.tensor(16))
    assert float(found) == pytest.approx(expected, abs=1e-4)


def test_of_rows_without_tokens_nothing_is_beyond():
    rows = reduce_to_rows(torch.tensor([[1.0]]), rows=[5], mask=torch.tensor([[False]]))
    assert float(loss_beyond_rows(torch.tensor(9.0), rows, num_items=None)) == 0.0
