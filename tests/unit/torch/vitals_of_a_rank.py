"""What each of two real ranks does for `test_health_vitals_two_ranks.py`: steps under `fully_shard`, measured."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from trimtab.torch.vitals import VitalsProbe


def built(*, shard: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    if shard:
        fully_shard(model[0])
        fully_shard(model)
    return model


def ratios(model: nn.Module) -> Any:
    """Of one step of AdamW, on the same batch on every rank."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    probe = VitalsProbe(model, optimizer)
    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    model(batch).square().mean().backward()
    probe.arm()
    optimizer.step()
    return dict(probe.collect(1).vitals().update_ratio)


def measure() -> Any:
    """Sharded, and whole."""
    return {"sharded": ratios(built(shard=True)), "whole": ratios(built(shard=False))}
