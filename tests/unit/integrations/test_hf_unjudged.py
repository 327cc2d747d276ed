"""A trainer that asks compute_loss for some of its micro-batches only: what went by unseen is kept, and counts."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback

from trimtab import GuardConfig


class EverySecond(Trainer):
    """Computes the loss of every second micro-batch itself, as a part of the mean over the window's tokens."""

    num_micros = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.num_micros += 1
        if self.num_micros % 2:
            return super().training_step(model, inputs, num_items_in_batch)
        loss = model(**self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch).loss
        self.accelerator.backward(loss)
        return loss.detach()


class Gradients(TrainerCallback):
    """Those of the first step, before the optimizer has them."""

    def __init__(self):
        self.found = None

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        if self.found is None:
            self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def summed_gradients(bench, batch, **faults):
    """Gradients of the summed token losses of a batch, by plain torch, and the number of its tokens."""
    model = bench.make_model("llama", nan_embedding="nan" in faults)
    targets = batch["labels"][:, 1:].flatten()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum").backward()
    return {name: p.grad for name, p in model.named_parameters()}, int((targets != -100).sum())


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("skipped_tokens", ["counted", "removed"])
def test_after_a_skip_its_gradient_is_that_of_the_tokens_that_are_left(bench, decide, skipped_tokens):
    # given the first micro-batch of the first window bad, the second unseen
    setting = dict(args=dict(gradient_accumulation_steps=2, max_grad_norm=1e9))
    skipped, unseen = bench.train(setting, cls=EverySecond).probe.rows[1]
    faults = dict(nan=[skipped[0]])
    # when
    gradients = Gradients()
    guard = GuardConfig(rule="robust", decide=decide, skipped_tokens=skipped_tokens)
    trained = bench.train(setting, cls=EverySecond, attach=dict(guard=guard), faults=faults, callbacks=[gradients])
    # then
    expected, num_tokens = summed_gradients(bench, bench.batch(setting, unseen, **faults), **faults)
    if skipped_tokens == "counted":
        num_tokens += summed_gradients(bench, bench.batch(setting, skipped, **faults), **faults)[1]
    assert gradients.found.keys() == expected.keys()
    for name, gradient in gradients.found.items():
        torch.testing.assert_close(gradient, expected[name] / num_tokens, rtol=1e-4, atol=1e-6)
    # and nobody says how many tokens a step had of which some went by unseen
    steps = trained.log.step_columns()
    assert steps.num_tokens.tolist() == [-1, -1, -1, steps.num_tokens[3]]
    assert steps.num_skipped_micros.tolist() == [1, 0, 0, 0]
    assert steps.loss[0] > 1.0
