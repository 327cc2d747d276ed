"""What happens to gradients between backward and the optimizer: scaled, measured, clipped, or taken away.

A step with zero gradients is no dropped step: momentum and weight decay would still move the weights. A dropped step
has no gradients at all. Gradients may be sparse, may be sharded over ranks (`DTensor`, as FSDP2 leaves them), and may
lie on several devices; what is computed of them never waits for a device.

P parameters were handed over, with or without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

_FOREACH_DEVICES: Final = ("cpu", "cuda", "xpu")
"""Where torch measures all gradients of one dtype in one call, in every version from 2.6 on."""


class GradientNorms(NamedTuple):
    """The 2-norms of a window's gradients, where the gradients are; the same numbers on every rank.

    Attributes:
        total: 0-d, of all gradients together, bit for bit what `clip_grad_norm_` computes; 0 without any.
        norms: (P,) of each parameter's gradient; 0 where it has none. (0,) where only the total is known.
        parameters: The P parameters, so that one can be named.
    """

    total: torch.Tensor
    norms: torch.Tensor
    parameters: Sequence[nn.Parameter] = ()

    @property
    def first_nonfinite(self) -> torch.Tensor:
        """0-d int64, place of the first parameter whose norm is not finite, -1 if there is none; never waits.

        Its gradient holds NaN or Inf, or finite numbers of which the norm is too large for their dtype (65,504 in
        float16; in float32 the squares, so that numbers above 1e19 will do). -1 beside a total that is not finite: no
        gradient is to be named, the norm of all together is too large.
        """
        bad = torch.cat([~torch.isfinite(self.norms), torch.ones(1, dtype=torch.bool, device=self.norms.device)])
        first = bad.to(torch.int32).argmax()  # of equals the first, so the one at the end if it is alone
        return torch.where(first < len(self.norms), first, -1)

    def is_of_nonfinite(self) -> bool:
        """Whether a gradient holds NaN or Inf, and not only numbers of which the norm is too large; waits.

        Alike on every rank: the norms of sharded gradients are summed in float64, and infinite only by what they hold.
        """
        for place in (~torch.isfinite(self.norms)).nonzero().flatten().tolist():
            grad = self.parameters[place].grad
            if grad is not None and (_sharding(grad) is not None or not bool(torch.isfinite(_values(grad)).all())):
                return True
        return False


def gradient_norms(parameters: Sequence[nn.Parameter]) -> GradientNorms:
    """Measures the gradients together and one by one; never waits for a device.

    Sharded gradients are reduced over their ranks, all of which must call this: the total as torch does it, and P
    numbers more for each way in which parameters are sharded.
    """
    with torch.no_grad():
        places = [place for place, parameter in enumerate(parameters) if parameter.grad is not None]
        grads = [_measurable(grad) for grad in _gradients(parameters)]
        if not grads:
            nothing = torch.zeros(len(parameters), device=parameters[0].device if parameters else None)
            return GradientNorms(nothing.sum(), nothing, parameters)
        device = grads[0].device
        totals: list[torch.Tensor] = []
        norms: list[torch.Tensor] = [torch.zeros((), device=device)] * len(parameters)
        for indices in _alike(grads, _sharding):
            alike = [grads[index] for index in indices]
            total, each = _plain_norms(alike) if _sharding(alike[0]) is None else _sharded_norms(alike)
            totals.append(total.to(device))
            for index, norm in zip(indices, each, strict=True):
                norms[places[index]] = norm.to(device)
        # Sharded beside plain parameters: torch's own clipping refuses them, so there is no order of its to keep.
        total = totals[0] if len(totals) == 1 else torch.linalg.vector_norm(torch.stack(totals))
        return GradientNorms(total, torch.stack(norms), parameters)


def _plain_norms(grads: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    kinds = _alike(grads, lambda grad: (grad.device, grad.dtype))
    norms = [torch.empty(())] * len(grads)
    for indices in kinds:
        alike = [grads[index] for index in indices]
        for index, norm in zip(indices, _each_norm(alike), strict=True):
            norms[index] = norm
    if len(kinds) > 1 or grads[0].device.type not in _FOREACH_DEVICES:
        # torch adds up the kinds in an order of its own, which is part of the last bit.
        return nn.utils.get_total_norm(grads), norms
    return torch.linalg.vector_norm(torch.stack(norms)), norms


def _each_norm(grads: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Norms of plain gradients of one kind."""
    # torch._foreach_norm is what torch's own clipping calls here, and gives other last bits than one norm at a time.
    if grads[0].device.type in _FOREACH_DEVICES and all(type(grad) is torch.Tensor for grad in grads):
        return torch._foreach_norm(grads)
    return [torch.linalg.vector_norm(grad) for grad in grads]


def _sharded_norms(grads: list[Any]) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Norms of `DTensor` gradients that are placed alike on one mesh."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    total: Any = nn.utils.get_total_norm(grads)
    # In float64 a square of a float32 does not overflow.
    here = torch.stack([torch.linalg.vector_norm(grad.to_local()).to(torch.float64) for grad in grads]).square()
    mesh, placements = grads[0].device_mesh, grads[0].placements
    parts = [Partial() if isinstance(placement, Shard) else Replicate() for placement in placements]
    squares: torch.Tensor = DTensor.from_local(here, mesh, parts, run_check=False).full_tensor()
    return total.full_tensor(), list(squares.sqrt().unbind())


def _sharding(tensor: torch.Tensor) -> Hashable:
    """How a tensor is spread over ranks; None for a plain tensor."""
    mesh = getattr(tensor, "device_mesh", None)
    return None if mesh is None else (mesh, getattr(tensor, "placements", None))


def _alike(grads: list[torch.Tensor], key: Callable[[torch.Tensor], Hashable]) -> list[list[int]]:
    """Places of the gradients that have the same key, the kind that comes first first."""
    kinds: dict[Hashable, list[int]] = {}
    for place, grad in enumerate(grads):
        kinds.setdefault(key(grad), []).append(place)
    return list(kinds.values())


def scale_gradients(parameters: Iterable[nn.Parameter], factor: float | torch.Tensor) -> None:
    """Multiplies every gradient by `factor`, a number or a 0-d tensor on the device of one of them; never waits.

    Both give the same bits: a number by itself would be rounded to the gradients' dtype first.
    """
    grads = [grad._values() if grad.is_sparse else grad for grad in _gradients(parameters)]
    for indices in _alike(grads, lambda grad: (grad.device, grad.dtype, _sharding(grad) is None)):
        alike = [grads[index] for index in indices]
        torch._foreach_mul_(alike, _on(alike[0].device, factor))


def widest(device: torch.device) -> torch.dtype:
    """The widest floating dtype that there is on a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def _on(device: torch.device, factor: float | torch.Tensor) -> torch.Tensor:
    """0-d on the device; a number in the widest dtype."""
    if isinstance(factor, torch.Tensor):
        return factor.to(device)
    return torch.full((), factor, dtype=widest(device), device=device)


def clip_gradients(parameters: Sequence[nn.Parameter], *, max_norm: float, norm: torch.Tensor) -> None:
    """Scales gradients down to `max_norm` where `norm`, their total norm, is above it; never waits.

    Bit for bit what `clip_grad_norm_` does, and the same for gradients that it refuses: sparse ones, and sharded beside
    plain ones.
    """
    if not math.isinf(max_norm):
        scale_gradients(parameters, (max_norm / (norm + 1e-6)).clamp(max=1.0))


def clear_nonfinite(parameters: Iterable[nn.Parameter], *, where: bool | torch.Tensor) -> None:
    """Takes away whole gradients whose norm is not finite; a device that decides puts zeros there, without a wait.

    Args:
        parameters: Whose gradients are looked at; measured as `gradient_norms` does, over their ranks too.
        where: Whether to do it; a bool, which may wait for the device, or 0-d bool on any device.
    """
    found = [parameter for parameter in parameters if parameter.grad is not None]
    if where is False or not found:
        return
    for parameter, norm in zip(found, gradient_norms(found).norms.unbind(), strict=True):
        is_bad = ~torch.isfinite(norm)
        if not isinstance(where, torch.Tensor):
            parameter.grad = None if bool(is_bad) else parameter.grad
            continue
        here = _values(parameter.grad)
        is_bad, is_wanted = (flag.to(here.device, non_blocking=here.device.type != "cpu") for flag in (is_bad, where))
        with torch.no_grad():
            here.copy_(torch.where(is_bad & is_wanted, 0.0, here))


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Takes every gradient away, so that an optimizer's step changes neither parameters nor moments nor its count."""
    for parameter in parameters:
        parameter.grad = None


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _values(grad: Any) -> torch.Tensor:
    """What a gradient holds on this rank: changing it in place changes the gradient, and its layout stays."""
    if _sharding(grad) is not None:
        grad = grad.to_local()
    values: torch.Tensor = grad._values() if grad.is_sparse else grad
    return values


def _measurable(grad: torch.Tensor) -> torch.Tensor:
    """The gradient, of a sparse one the values of a copy in which each row comes once.

    A copy: what is added to the gradient later would be added up in another order.
    """
    return grad.coalesce().values() if grad.is_sparse else grad
