"""On a real device: `loss = guard(loss)`, backward and a fused step wait for nothing, and decide as `check` does."""

import logging
import math

import pytest
import torch
from torch import nn

from trimtab import LossGuard

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("settings", [dict(multiplier=2.0), dict(rule="robust", min_history=5)], ids=["mean", "robust"])
def test_a_window_waits_for_nothing_and_is_judged_as_on_the_host(settings, compiled, caplog):
    # given
    caplog.set_level(logging.CRITICAL, "trimtab")
    model = nn.Linear(8, 1, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    guard, host = LossGuard(**settings, model=model), LossGuard(**settings)
    losses = [2.0 + 0.01 * (place % 7) for place in range(60)]
    losses[20], losses[31], losses[44] = 50.0, math.nan, math.inf
    on_device = torch.tensor(losses, device="cuda")

    def guarded(loss):
        return guard(model.weight.sum() * 0 + loss)

    call = torch.compile(guarded, fullgraph=True) if compiled else guarded
    skipped = torch.zeros(len(losses), dtype=torch.bool, device="cuda")
    for place in range(3):  # compiles, and makes what is made once; the host hears the same
        call(on_device[place]).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()

    # when
    torch.cuda.set_sync_debug_mode("error")
    try:
        for place in range(3, len(losses)):
            loss = call(on_device[place])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            skipped[place] = loss.detach() == 0
    finally:
        torch.cuda.set_sync_debug_mode("default")

    # then
    assert skipped.tolist() == [not host.check(loss).keep for loss in losses]
    assert guard.state_dict() == host.state_dict()


def test_a_model_that_moves_takes_its_history_and_its_windows_along():
    # given: a history on the CPU
    model = nn.Linear(8, 1)
    guard = LossGuard(multiplier=2.0, model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(4):
        guard(model.weight.sum() * 0 + 1.0).backward()
        optimizer.step()
        optimizer.zero_grad()

    # when
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    before = model.weight.clone()

    # then: a window that is skipped whole takes no step there either
    guard(model.weight.sum() * 0 + 9.0).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(model.weight, before)
    assert guard(model.weight.sum() * 0 + 1.0).item() == 1.0
    state = guard.state_dict()
    assert (state["num_judged"], state["num_skipped"]) == (6, 1)
