"""Hugging Face's smoothed loss, taken apart: equal to theirs, bit for bit."""

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput
from transformers.trainer_pt_utils import LabelSmoother

from trimtab.integrations.hf_smoothing import CapturingSmoother


def example(dtype=torch.float32, *, labels_a_row=False):
    generator = torch.Generator().manual_seed(3)
    shape = (5, 11) if labels_a_row else (3, 7, 11)
    logits = (torch.randn(shape, generator=generator) * 3).to(dtype)
    labels = torch.randint(0, 11, shape[:-1], generator=generator)
    labels.flatten()[::4] = -100
    return logits, labels


def loss_and_gradient(smoother, logits, labels, **settings):
    logits = logits.clone().requires_grad_()
    loss = smoother(CausalLMOutput(logits=logits), labels, **settings)
    (loss * 1.7).backward()
    return loss.detach(), logits.grad


def capturing(epsilon=0.1):
    smoother = CapturingSmoother(LabelSmoother(epsilon=epsilon))
    smoother.active = True
    return smoother


@pytest.mark.parametrize(("labels_a_row", "shift"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("num_items", [None, 29, torch.tensor(29)], ids=["micro", "int", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_loss_and_gradient_are_hugging_faces_own(dtype, shift, num_items, labels_a_row):
    # given
    logits, labels = example(dtype, labels_a_row=labels_a_row)
    settings = dict(shift_labels=shift, num_items_in_batch=num_items)
    loss, gradient = loss_and_gradient(LabelSmoother(epsilon=0.1), logits, labels, **settings)
    # when
    smoother = capturing()
    own, own_gradient = loss_and_gradient(smoother, logits, labels, **settings)
    # then
    assert own.dtype == loss.dtype
    assert torch.equal(own, loss)
    assert torch.equal(own_gradient, gradient)
    assert smoother.was_called


def test_token_losses_are_the_terms_of_the_sum():
    # given
    logits, labels = example(torch.float64)
    smoother = capturing(epsilon=0.3)
    # when
    smoother(CausalLMOutput(logits=logits), labels)
    # then
    [tokens] = smoother.calls
    for b in range(3):
        for t in range(7):
            place, label = 7 * b + t, labels[b, t].item()
            assert tokens.supervised[place] == (label != -100)
            surprisal = -logits[b, t].log_softmax(-1)
            expected = 0.7 * surprisal[label] + 0.3 * surprisal.mean() if label != -100 else 0.0
            assert tokens.losses[place] == pytest.approx(float(expected), rel=1e-5)


def test_outputs_may_be_a_tuple():
    logits, labels = example()
    assert torch.equal(capturing()((logits,), labels), LabelSmoother(epsilon=0.1)((logits,), labels))


def test_an_idle_one_asks_the_original():
    # given a smoother with a formula of its own
    class Other(LabelSmoother):
        def __call__(self, *args, **kwargs):
            return torch.tensor(42.0)

    smoother = CapturingSmoother(Other())
    # then
    assert smoother((torch.zeros(1, 2),), torch.zeros(1, dtype=torch.int64)) == 42.0
    assert smoother.calls == []
    assert not smoother.was_called
