"""Without a guard no step reads a value on the host. There is no device here to wait for, so reads are counted."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import GuardConfig, LossKit, Run, TokenNormedLossKit

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
}


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host must have before it can go on."""

    def __init__(self):
        super().__init__()
        self.num_reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.num_reads += func in WAITING or by_mask
        return func(*args, **(kwargs or {}))


def test_the_counter_sees_a_read():
    with HostReads() as reads:
        torch.ones(()).item()
        bool(torch.ones(()) > 0)
        torch.ones(3)[torch.ones(3) > 0]
    assert reads.num_reads >= 3


def losses_of(kind, model):
    x = torch.ones(2, 3, 4)
    token_losses = model(x).squeeze(-1) ** 2
    mask = torch.tensor([[True, True, False], [True, False, False]])
    return {
        "tokens": dict(losses=token_losses, rows=torch.tensor([0, 1]), mask=mask),
        "packed": dict(losses=token_losses, rows=torch.tensor([[0, 0, 1], [2, 2, 2]])),
        "samples": dict(losses=token_losses.mean(1), rows=torch.tensor([0, 1]), per="sample"),
        "aux": dict(losses=token_losses, rows=torch.tensor([0, 1]), aux=token_losses.sum() * 0.0),
    }[kind]


@pytest.mark.parametrize("kind", ["tokens", "packed", "samples", "aux"])
@pytest.mark.parametrize("normalize", ["micro", "window"])
@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_step_without_a_guard_reads_nothing(tmp_path, kind, normalize, max_grad_norm):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Run(
        tmp_path, model=model, optimizer=optimizer, accumulation=2, normalize=normalize, max_grad_norm=max_grad_norm
    ) as run:
        for _ in range(2):
            with HostReads() as reads:
                if normalize == "window" and kind == "aux":
                    run.begin_window(12)
                for _ in range(2):
                    batch = losses_of(kind, model)
                    run.micro_batch(batch.pop("losses"), **batch).backward()
                outcome = run.step()
            assert reads.num_reads == 0
    assert outcome.loss > 0


def test_with_a_guard_one_norm_is_read_a_step(tmp_path):
    model = nn.Linear(4, 1)
    run = Run(
        tmp_path,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        guard=GuardConfig(rule="robust"),
    )
    with HostReads() as reads:  # the figures of a micro-batch come as one list, which is no such operation on a CPU
        batch = losses_of("tokens", model)
        run.micro_batch(batch.pop("losses"), **batch).backward()
        assert reads.num_reads == 0
        run.step()
    run.close()
    assert reads.num_reads == 1


KITS = [LossKit, TokenNormedLossKit]


def window_of(kit, model, num_tokens):
    for _ in range(2):
        loss = losses_of("samples", model)["losses"].sum()
        counted = () if isinstance(kit, LossKit) else (num_tokens,)
        kit.guard_loss(loss, *counted)
        (kit.accumulate if isinstance(kit, LossKit) else kit.accumulate_microbatch)(loss, *counted).backward()
    return kit.finish_window(model.parameters())


@pytest.mark.parametrize("made", KITS)
@pytest.mark.parametrize("num_tokens", [2, torch.tensor(2)], ids=["a number", "a tensor"])
def test_a_window_of_a_kit_without_a_guard_reads_nothing(made, num_tokens):
    model = nn.Linear(4, 1)
    kit = made(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    with HostReads() as reads:
        result = window_of(kit, model, num_tokens)
    assert reads.num_reads == 0
    assert result.loss > 0


@pytest.mark.parametrize("made", KITS)
def test_with_a_guard_a_kit_reads_one_norm_a_window_beside_the_figures(made):
    model = nn.Linear(4, 1)
    kit = made(model)
    kit.build_loss_guard({"loss_spike_skip_multiplier": 3.0})
    with HostReads() as reads:  # the figures of a micro-batch come as one list, which is no such operation on a CPU
        window_of(kit, model, 2)
    assert reads.num_reads == 1


@pytest.mark.parametrize("made", KITS)
def test_the_sums_of_a_kit_stay_on_the_device_of_the_loss(made):
    # given: a device that holds no values, so that whoever looked at one would fail
    kit = made()
    parameter = nn.Parameter(torch.ones(3, device="meta"))
    # when
    counted = () if made is LossKit else (3,)
    (kit.accumulate if made is LossKit else kit.accumulate_microbatch)(parameter.sum(), *counted).backward()
    # then
    assert kit._mean.num_tokens.device.type == kit._mean.reported_loss(kit._gate.core.window).device.type == "meta"
    factor = kit._mean._factor(kit._gate.core.window)
    assert factor is None if made is LossKit else factor.device.type == "meta"
