"""What each of two real ranks does for `test_run_step_two_ranks.py`: runs made in the wrong order."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from trimtab import GuardConfig, Run
from trimtab.errors import UsageError


def made_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def guard_of(decide: str | None) -> GuardConfig | None:
    return GuardConfig(rule="robust", decide=decide) if decide else None


def losses_of(model: nn.Module) -> torch.Tensor:
    losses: torch.Tensor = model(torch.ones(2, 4)).squeeze(1) ** 2
    return losses


def run_made_before_the_group(*, meeting: str, decide: str | None) -> str:
    rank = dist.get_rank()
    dist.destroy_process_group()
    model = made_model()
    run = Run(
        None, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), guard=guard_of(decide), record=False
    )
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        run.micro_batch(losses_of(model), rows=[0, 1], per="sample")
    except UsageError as error:
        return str(error)
    finally:
        run.close()
    return "went on"


def optimizer_made_before_the_shards(*, decide: str | None) -> str:
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    fully_shard(model)
    run = Run(None, model=model, optimizer=optimizer, guard=guard_of(decide), record=False)
    run.micro_batch(losses_of(model), rows=[0, 1], per="sample").backward()
    try:
        run.step()
    except UsageError as error:
        return str(error)
    finally:
        run.close()
    return "went on"


def halves_of_a_sharded_model(*, decide: str) -> Any:
    """Two runs take turns, each with one layer; at the second turn the first one's derivatives are infinite."""
    model = made_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    runs = [
        Run(
            None, model=model, optimizer=torch.optim.AdamW(model[at].parameters()), guard=guard_of(decide), record=False
        )
        for at in (0, 2)
    ]
    reasons = []
    for turn in range(3):
        for run in runs:
            losses = losses_of(model)
            if turn == 1 and run is runs[0]:
                losses = losses + 0 * torch.sqrt((losses - losses.detach()).abs())
            run.micro_batch(losses, rows=[0, 1], per="sample").backward()
            reasons.append(run.step().reason)
    for run in runs:
        run.close()
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    return {"reasons": reasons, "is_finite": all(math.isfinite(value.sum()) for value in whole)}
