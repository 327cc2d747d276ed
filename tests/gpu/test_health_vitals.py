"""On a real device: a step is measured without a wait, and its figures arrive."""

import pytest
import torch
from torch import nn

from trimtab.torch.vitals import VitalsProbe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_an_armed_step_waits_for_nothing_and_is_measured(fused: bool) -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused, capturable=not fused)
    probe = VitalsProbe(model, optimizer)
    batch = torch.randn(64, 512, device="cuda")

    def step(*, armed: bool) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        if armed:
            probe.arm()
        optimizer.step()

    # given the first ones, which make streams, handles and pinned memory
    step(armed=True)
    model[0].max_attention_logit = torch.tensor(12.0, device="cuda")
    probe.collect(1).vitals()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.dim() > 1}

    # when
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(armed=True)
        reading = probe.collect(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    # then
    vitals = reading.vitals()
    after = dict(model.named_parameters())
    moved = {name: float((after[name] - old).norm() / old.norm()) for name, old in before.items()}
    assert vitals.update_ratio == pytest.approx(moved, rel=1e-4)
    assert vitals.attention_logit == 12.0
    assert vitals.device_peak_bytes is not None
    assert vitals.device_total_bytes is not None
    assert 0 < vitals.device_peak_bytes < vitals.device_total_bytes
