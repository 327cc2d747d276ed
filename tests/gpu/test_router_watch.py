"""On a real device: a window of a watched model waits for nothing, and a report is one copy to the host."""

import pytest
import torch
from torch import nn

from trimtab.moe import RouterWatch

pytestmark = pytest.mark.gpu


class Model(nn.Module):
    def __init__(self, *, num_layers: int = 4, num_experts: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gates = nn.ModuleList([nn.Linear(32, num_experts) for _ in range(num_layers)])
        self.back = nn.ModuleList([nn.Linear(num_experts, 32) for _ in range(num_layers)])

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        for gate, back in zip(self.gates, self.back, strict=True):
            x = x + back(gate(x).softmax(-1))
        return x.square().mean()


def train(model: Model, x: torch.Tensor, mask: torch.Tensor) -> None:
    """A window of three micro-batches, the last of which has no padding."""
    for attention_mask in (mask, mask, None):
        model(x, attention_mask=attention_mask).backward()


def test_a_window_waits_for_nothing_and_its_report_is_one_copy() -> None:
    # given: logits without ties, so that every topk chooses alike
    x = torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(24) < torch.tensor([24, 20, 10, 3])[:, None]).long()
    on_cpu = Model()
    expected = RouterWatch(on_cpu, routers=lambda model: model.gates, top_k=2)
    train(on_cpu, x, mask)
    model = Model().cuda()
    watch = RouterWatch(model, routers=lambda model: model.gates, top_k=2)
    there, mask_there = x.cuda(), mask.cuda()
    train(model, there, mask_there)  # what is made once may wait: sums, streams, pinned memory
    watch.report(1)
    torch.cuda.synchronize()

    # when
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(model, there, mask_there)
        reading = watch.collect(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    report = reading.report()
    train(model, there, mask_there)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        watch.report(3)
        torch.cuda.synchronize()

    # then
    copies = [event.name for event in profile.events() if "Memcpy DtoH" in event.name]
    assert len(copies) == 1, copies
    assert report.notes == ()
    for mine, theirs in zip(report.layers, expected.report(2).layers, strict=True):
        assert mine.counts == theirs.counts
        assert mine.num_tokens == theirs.num_tokens == 2 * 57 + 96
        for figure in ("z", "lse", "load_balance", "token_entropy", "spread"):
            assert getattr(mine, figure) == pytest.approx(getattr(theirs, figure), rel=1e-4)
