"""Where the device decides, a guard in a `Trainer` reads no value on the host that the Trainer would not have read.

There is no device here to wait for, so operations are counted whose result the host must have before it can go on.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import trimtab
from trimtab import GuardConfig

AT_THE_END = 1
"""A training that is over is asked how often its loss held more than that of the tokens."""

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
}


class HostReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.num_reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.num_reads += func in WAITING or by_mask
        return func(*args, **(kwargs or {}))


def num_reads(bench, setting, *, guard=None, costly=(), on_dropped="advance"):
    trainer = bench.trainer(setting, faults=dict(costly=costly))
    if guard is not None:
        trimtab.attach(trainer, guard=guard, on_dropped=on_dropped)
    with HostReads() as reads:
        trainer.train()
    return reads.num_reads


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("skipped_tokens", ["counted", "removed"])
def test_a_device_that_decides_is_never_waited_for_with_the_default_optimizer(bench, max_grad_norm, skipped_tokens):
    # given a window of which one micro-batch is bad, and one that is bad as a whole
    setting = dict(args=dict(gradient_accumulation_steps=2, num_train_epochs=2, max_grad_norm=max_grad_norm))
    plan = bench.train(setting).probe.rows
    bad = [plan[3][0][0], plan[3][1][0], plan[4][0][0]]
    guard = GuardConfig(multiplier=3.0, decide="device", skipped_tokens=skipped_tokens)
    # then
    assert num_reads(bench, setting, guard=guard, costly=bad) == num_reads(bench, setting, costly=bad) + AT_THE_END


def test_a_schedule_that_is_held_costs_a_look_a_step(bench):
    setting = dict(args=dict(gradient_accumulation_steps=2))
    guard = GuardConfig(multiplier=3.0, decide="device")
    plain, held = (num_reads(bench, setting, guard=guard, on_dropped=how) for how in ("advance", "hold"))
    assert held == plain + 4


def test_an_optimizer_that_is_not_fused_costs_a_look_a_step(bench):
    setting = dict(args=dict(gradient_accumulation_steps=2, optim="sgd"))
    guard = GuardConfig(multiplier=3.0, decide="device")
    assert num_reads(bench, setting, guard=guard) == num_reads(bench, setting) + 4 + AT_THE_END
