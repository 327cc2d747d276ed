"""What each of two real ranks does for `test_probe_two_ranks.py`."""

from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.torch.probe import generation_probe

IDS = torch.arange(12).reshape(2, 6)


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 50))


def probe_plain():
    return asdict(generation_probe(made(), IDS))


def probe_under_ddp_on_rank_0_alone():
    model = DistributedDataParallel(made())
    found = asdict(generation_probe(model, IDS)) if dist.get_rank() == 0 else None
    model(IDS).sum().backward()  # and training goes on together
    return found


def probe_sharded():
    """What was found, and whether the parameters are shards afterwards and a step can be taken."""
    model = made()
    fully_shard(model[1])
    fully_shard(model)
    found = asdict(generation_probe(model, IDS))
    are_shards = all(isinstance(parameter, DTensor) for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS).square().sum().backward()
    optimizer.step()
    return dict(found=found, are_shards=are_shards)
