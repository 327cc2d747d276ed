"""Token losses out of somebody else's cross-entropy: its value and gradient are torch's own, bit for bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimtab.torch.capture import CapturingLoss, CrossEntropyCapture

SHAPES = {
    "tokens": ((37, 300), (37,)),
    "classes second": ((4, 17, 9), (4, 9)),
    "one": ((17,), ()),
    "pixels": ((3, 7, 4, 5), (3, 4, 5)),
}


def logits_and_target(shape, target_shape, dtype=torch.float32, *, ignored=True):
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(shape, generator=generator) * 3).to(dtype)
    num_classes = shape[0] if len(shape) == 1 else shape[1]
    target = torch.randint(0, num_classes, target_shape, generator=generator)
    if ignored and target_shape:
        target.flatten()[::3] = -100
    return logits, target


def loss_and_gradient(logits, target, *, captured, autocast=False, **settings):
    logits = logits.clone().requires_grad_()
    capture = CrossEntropyCapture()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if captured:
            with capture:
                loss = F.cross_entropy(logits, target, **settings)
        else:
            loss = F.cross_entropy(logits, target, **settings)
    (loss * 1.7).sum().backward()
    return loss.detach(), logits.grad, capture.calls


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_loss_and_gradient_are_torchs_own(shapes, reduction, dtype, autocast):
    # given
    logits, target = logits_and_target(*shapes, dtype)
    loss, gradient, _ = loss_and_gradient(logits, target, captured=False, autocast=autocast, reduction=reduction)
    # when
    own, own_gradient, calls = loss_and_gradient(logits, target, captured=True, autocast=autocast, reduction=reduction)
    # then
    assert own.dtype == loss.dtype
    assert torch.equal(own, loss)
    assert torch.equal(own_gradient, gradient)
    # and the token losses are its terms, in the order of the target
    [tokens] = calls
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = F.cross_entropy(logits, target, reduction="none").flatten()
    assert torch.equal(tokens.losses, expected)
    assert torch.equal(tokens.supervised, (target != -100).flatten())
    assert not tokens.losses.requires_grad


def test_ignored_entries_cost_nothing_and_may_have_any_number():
    logits, target = logits_and_target((6, 9), (6,), ignored=False)
    target[2] = 8
    _, _, [tokens] = loss_and_gradient(logits, target, captured=True, ignore_index=8)
    assert tokens.supervised.tolist() == [True, True, False, True, True, True]
    assert tokens.losses[2] == 0.0


def test_a_mean_over_nothing_is_torchs_nan_with_torchs_gradient():
    logits, target = logits_and_target((6, 9), (6,))
    target[:] = -100
    loss, gradient, _ = loss_and_gradient(logits, target, captured=False)
    own, own_gradient, [tokens] = loss_and_gradient(logits, target, captured=True)
    assert math.isnan(own)
    assert math.isnan(loss)
    assert torch.equal(own_gradient.nan_to_num(7.0), gradient.nan_to_num(7.0))
    assert not tokens.supervised.any()


def test_values_that_are_not_finite_stay_where_they_are():
    logits, target = logits_and_target((6, 9), (6,), ignored=False)
    logits[1] = math.nan
    logits[3] = torch.where(torch.arange(9) == target[3], -math.inf, 0.0)
    _, _, [tokens] = loss_and_gradient(logits, target, captured=True)
    assert math.isnan(tokens.losses[1])
    assert tokens.losses[3] == math.inf
    assert tokens.losses[[0, 2, 4, 5]].isfinite().all()


@pytest.mark.parametrize(
    "settings",
    [
        dict(weight=torch.linspace(0.5, 1.5, 9)),
        dict(label_smoothing=0.1),
        dict(reduction="none"),
        dict(size_average=False),
        dict(reduce=False),
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_what_is_no_plain_sum_over_tokens_is_left_alone(settings):
    logits, target = logits_and_target((6, 9), (6,))
    loss, gradient, _ = loss_and_gradient(logits, target, captured=False, **settings)
    own, own_gradient, calls = loss_and_gradient(logits, target, captured=True, **settings)
    assert torch.equal(own, loss)
    assert torch.equal(own_gradient, gradient)
    assert calls == []


def test_soft_targets_are_left_alone():
    logits, _ = logits_and_target((6, 9), (6,))
    target = torch.full((6, 9), 1 / 9)
    loss, _, _ = loss_and_gradient(logits, target, captured=False)
    own, _, calls = loss_and_gradient(logits, target, captured=True)
    assert torch.equal(own, loss)
    assert calls == []


def test_arguments_may_come_by_position_and_from_a_module():
    logits, target = logits_and_target((6, 9), (6,))
    with CrossEntropyCapture() as capture:
        F.cross_entropy(logits, target, None, None, -100, None, "sum")
        nn.CrossEntropyLoss()(logits, target)
    assert len(capture.calls) == 2


def test_a_capture_inside_another_keeps_the_call_for_itself():
    logits, target = logits_and_target((6, 9), (6,))
    with CrossEntropyCapture() as outer:
        with CrossEntropyCapture() as inner:
            F.cross_entropy(logits, target)
        F.cross_entropy(logits, target, reduction="sum")
    assert len(inner.calls) == 1
    assert len(outer.calls) == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_cross_entropy_that_is_recomputed_in_backward_is_unharmed(use_reentrant):
    # given a loss inside a checkpointed function
    logits, target = logits_and_target((6, 9), (6,))
    gradients = []
    for context in (None, CrossEntropyCapture()):
        own = logits.clone().requires_grad_()
        if context is None:
            loss = checkpoint(F.cross_entropy, own, target, use_reentrant=use_reentrant)
        else:
            with context:
                loss = checkpoint(F.cross_entropy, own, target, use_reentrant=use_reentrant)
        # when it is computed again, outside of the capture
        loss.backward()
        gradients.append(own.grad)
    # then
    assert torch.equal(*gradients)


def test_a_capturing_loss_keeps_only_while_it_is_active():
    logits, target = logits_and_target((6, 9), (6,))
    place = CapturingLoss(F.cross_entropy)
    idle = place(logits, target)
    assert place.calls == []
    assert not place.was_called
    place.active = True
    assert torch.equal(place(logits, target, reduction="mean"), idle)
    assert len(place.calls) == 1
    assert place.was_called
