"""An audit leaves everything as it was, to the last bit: under DDP too, and where the loss raises."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trimtab import moe

spec = importlib.util.spec_from_file_location("moe_audit_loops", Path(__file__).with_name("moe_audit_loops.py"))
loops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loops)


def audit(model, losses):
    return moe.audit_aux_weights(
        model,
        losses=losses,
        micro_batches=loops.batches(),
        weights=loops.WEIGHTS,
        top_k=loops.TOP_K,
        routers=lambda inside: inside.gates,
    )


def everything(model, optimizer):
    """All that training goes by, as bytes and identities."""
    return {
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()},
        "gradients": [
            (id(p.grad), p.grad.numpy().tobytes()) if p.grad is not None else None for p in model.parameters()
        ],
        "buffers": [id(buffer) for buffer in model.buffers()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "moments": [value.numpy().tobytes() for state in optimizer.state.values() for value in state.values()],
        "dice": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
        "autograd": torch.is_grad_enabled(),
    }


def trained(model):
    """After a step, with gradients of the next window in place and some modules in eval."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = loops.loss_of(model)
    losses(loops.batches()[0], 1)["total"].backward()
    optimizer.step()
    optimizer.zero_grad()
    losses(loops.batches()[1], 1)["total"].backward()
    model.head.eval()
    model.gates[0].weight.grad = None
    return optimizer


@pytest.mark.parametrize("raises", [False, True], ids=["through", "raising"])
def test_model_gradients_buffers_modes_and_random_numbers_are_what_they_were(raises):
    # given: a loop that draws, and whose loss changes buffers and modes
    model = loops.net(dropout=0.2)
    optimizer = trained(model)
    right = loops.loss_of(model)

    def losses(batch, accumulation):
        random.random(), np.random.rand()
        given = right(batch, accumulation)  # writes into the buffer
        model.num_calls = model.num_calls + 5  # puts another one there
        model.eval()
        if raises and accumulation == 1:
            raise RuntimeError("the loop's own")
        return given

    before = everything(model, optimizer)

    # when
    with torch.no_grad():
        before["autograd"] = False
        if raises:
            with pytest.raises(RuntimeError, match="the loop's own"):
                audit(model, losses)
        else:
            assert audit(model, losses).is_sound
        after = everything(model, optimizer)

    # then
    assert after == before


def test_training_goes_on_as_if_nothing_had_been_audited():
    def train(*, audited):
        model = loops.net(dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = loops.loss_of(model)
        for batch in loops.batches(4):
            losses(batch, 1)["total"].backward()
            if audited:
                audit(model, losses)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(audited=True), train(audited=False), strict=True))


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("unused", [False, True], ids=["all used", "find unused"])
def test_a_model_in_ddp_is_audited_and_trains_on(group, unused):
    # given
    net = loops.net()
    if unused:
        net.register_parameter("spare", torch.nn.Parameter(torch.zeros(1)))
    model = DistributedDataParallel(net, find_unused_parameters=unused)
    losses = loops.loss_of(model)

    # when
    result = audit(model, losses)

    # then: no gradient is left, and the wrapper still reduces
    assert result.is_sound
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.require_backward_grad_sync
    for batch in loops.batches():
        losses(batch, 1)["total"].backward()
    assert all(parameter.grad is not None for name, parameter in net.named_parameters() if name != "spare")
