"""What each of two ranks does for `test_gradients.py`: it trains one step, and measures and clips its gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.torch.gradients import clip_gradients, gradient_norms, scale_gradients
from trimtab.torch.veto import StepVeto

MESHES = {
    "hsdp 1x2": lambda: init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard")),
    "hsdp 2x1": lambda: init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")),
}

WIDTHS = [(6, 5), (5, 7), (7, 3)]


def net() -> nn.Sequential:
    """Three layers, the same on every rank; the last bias is frozen."""
    torch.manual_seed(3)
    layers = [nn.Linear(*width, dtype=torch.float64) for width in WIDTHS]
    layers[-1].bias.requires_grad_(False)
    return nn.Sequential(*layers)


def rows() -> torch.Tensor:
    """(4, 6), a batch of which each rank takes a half."""
    return torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """0-d, mean over the batch."""
    return model(batch).square().mean()


def _with_gradients(host: str) -> list[nn.Parameter]:
    model = net()
    extra = nn.Parameter(torch.tensor([2.0, 3.0], dtype=torch.float64))  # on no rank sharded
    if host == "ddp":
        wrapped: nn.Module = DistributedDataParallel(model)
    else:
        mesh = MESHES.get(host, lambda: init_device_mesh("cpu", (2,)))()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    loss_of(wrapped, rows().chunk(2)[dist.get_rank()]).backward()
    parameters = list(wrapped.parameters())
    if host == "mixed":
        extra.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
        parameters.insert(1, extra)
    return parameters


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def measured(host: str, spoilt_rank: int | None = None, spoilt: int = 0, value: float = float("nan")) -> dict[str, Any]:
    """Norms of one step, after `value` was put into the gradient of a parameter as one rank holds it."""
    parameters = _with_gradients(host)
    if dist.get_rank() == spoilt_rank:
        grad = parameters[spoilt].grad
        assert grad is not None
        _local(grad).view(-1)[-1] = value
    norms = gradient_norms(parameters)
    return {
        "total": norms.total.item(),
        "norms": norms.norms.tolist(),
        "first_nonfinite": norms.first_nonfinite.item(),
        "is_plain": type(norms.total) is torch.Tensor and type(norms.norms) is torch.Tensor,
    }


def clipped(host: str) -> dict[str, bool]:
    """Whether clipping and scaling are, bit for bit, what torch does with the same gradients."""
    ours, theirs = _with_gradients(host), _with_gradients(host)
    norm = gradient_norms(ours).total
    clip_gradients(ours, max_norm=0.1, norm=norm)
    their_norm: Any = nn.utils.clip_grad_norm_(theirs, 0.1)
    same_norm = norm.equal(their_norm.full_tensor() if isinstance(their_norm, DTensor) else their_norm)
    pairs = [
        (_local(one.grad), _local(other.grad)) for one, other in zip(ours, theirs, strict=True) if one.grad is not None
    ]
    same_clipped = all(one.equal(other) for one, other in pairs)
    scale_gradients(ours, torch.tensor(0.3, dtype=torch.float64))
    same_scaled = all(one.equal(other * 0.3) for one, other in pairs)
    return {"norm": same_norm, "clipped": same_clipped, "scaled": same_scaled}


def clipped_mixed() -> dict[str, float]:
    """The norm after sharded gradients beside a plain one were clipped to 1, and scaled by 3."""
    parameters = _with_gradients("mixed")
    clip_gradients(parameters, max_norm=1.0, norm=gradient_norms(parameters).total)
    after_clip = gradient_norms(parameters).total.item()
    scale_gradients(parameters, 3.0)
    return {"clipped": after_clip, "scaled": gradient_norms(parameters).total.item()}


def vetoed(host: str, fused: bool, by_tensor: bool) -> dict[str, bool]:
    """Whether a step of AdamW vetoed on NaN gradients left parameters as they were, and the next one is a first one."""
    parameters, others = _with_gradients(host), _with_gradients(host)
    before = [_local(parameter.detach()).clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=fused)
    good = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None if parameter.grad is None else parameter.grad * float("nan")
    veto = StepVeto(optimizer)
    veto.drop_next(torch.ones((), dtype=torch.bool) if by_tensor else True)
    optimizer.step()
    stands = all(one.equal(_local(other.detach())) for one, other in zip(before, parameters, strict=True))
    for parameter, grad in zip(parameters, good, strict=True):
        parameter.grad = grad
    optimizer.step()
    torch.optim.AdamW(others, lr=0.1, fused=fused).step()
    pairs = zip(parameters, others, strict=True)
    same = all(_local(one.detach()).equal(_local(other.detach())) for one, other in pairs)
    moved = not before[0].equal(_local(parameters[0].detach()))
    return {"stands": stands, "goes on": same, "moved": moved}
