"""What the zero of a skipped micro-batch hangs on, so that its backward runs through the model on every rank.

Enters: what a loop has for a loss after it was told to skip, and what the guard has judged. Leaves: a 0-d tensor with a
graph; what its backward sends is masked elsewhere. Invariant: no rank leaves a backward out. Under DDP the ranks would
differ for ever after, and under FSDP2 the others would wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.torch.sharding import is_shard


def anchored(given: object, *, judged: torch.Tensor, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Something to call backward on, by what is at hand; its value means nothing. Never waits.

    Args:
        given: What the loop has: the loss, with what else was added to it; or anything without a graph, such as a
            product of zero and the detached loss, a constant, NaN, None.
        judged: What the guard was asked about, 0-d, with a graph or without.
        parameters: Those of the model, looked at where neither has a graph.

    Returns:
        0-d: both together, as far as they have a graph; else a zero computed from no value of any parameter, which is
        exact in one process and under DDP. (DDP with `find_unused_parameters` refuses its backward where the forward
        has left a parameter out.)

    Raises:
        UsageError: Neither has a graph, and the model is sharded: no other graph reaches what `fully_shard` shows.
    """
    # A leaf that requires a gradient, as torch.zeros((), requires_grad=True), leads nowhere.
    found = [value for value in (given, judged) if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    if found:
        # The judged one may miss terms that were added since, and the given one may be none of the model's.
        return reduce(torch.add, (value.sum().to(found[0].device) for value in dict.fromkeys(found)))
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if any(map(is_shard, trained)):
        raise UsageError(
            "A micro-batch was skipped and nothing of it has a graph: under fully_shard a backward has to run through "
            "the model all the same, on every rank. Hand guard_loss the loss tensor itself, not .detach() or .item()."
        )
    zero = torch.zeros((), dtype=judged.dtype, device=judged.device)
    return sum((parameter.flatten()[:0].sum().to(zero) for parameter in trained), start=zero)
