"""After a window in which nothing was kept: what a user's own callback does then is none of the guard's business."""

import pytest
import torch
from transformers import TrainerCallback

from trimtab import GuardConfig


class OwnBackward(TrainerCallback):
    """At the end of each step, the derivative of the sum of a weight by itself: ones."""

    def __init__(self):
        self.found = []

    def on_step_end(self, args, state, control, model, **_):
        weight = model.lm_head.weight
        weight.grad = None
        weight.sum().backward()
        self.found.append(bool((weight.grad == torch.ones_like(weight)).all()))
        weight.grad = None


@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before ours", "after ours"])
def test_a_backward_of_ones_own_after_a_window_wholly_skipped_is_not_masked(bench, decide, is_first):
    # given a fifth step of which both rows cost 100
    bad = bench.train().probe.rows[5][0]
    own = OwnBackward()
    late = {} if is_first else dict(cls=_with_a_callback_at_the_end(own))
    early = dict(callbacks=[own]) if is_first else {}
    # when
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(attach=dict(guard=guard), faults=dict(costly=bad), **early, **late)
    # then
    assert {step for step, *_, keep in trained.records() if not keep} == {5}
    assert own.found == [True] * 7


def _with_a_callback_at_the_end(callback):
    from transformers import Trainer

    class AddsLate(Trainer):
        """Adds a callback when training begins, behind all others."""

        def train(self, *args, **kwargs):
            self.add_callback(callback)
            return super().train(*args, **kwargs)

    return AddsLate
